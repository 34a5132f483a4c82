"""What a tool says when something is wrong: where, what, and what to do."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One finding, printed as two lines: the place with the fault, then the remedy."""

    where: str
    fault: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.fault}\n    {self.remedy}"


class ProblemError(Exception):
    """Raised by a tool that cannot go on; carries what it found."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems
