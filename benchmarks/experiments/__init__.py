"""What chapters and pages draw: trainings with one thing changed, searches, costs of layers."""
