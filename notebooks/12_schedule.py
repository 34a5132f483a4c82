# %% tags=["remove-cell"]
# In Colab, install the package that this book builds
import sys

if "google.colab" in sys.modules:
    import subprocess

    package = "annotated-transformer[notebooks] @ git+https://github.com/annotated-transformer/annotated-transformer"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=True)

# %% [markdown]
# # Schedule
#
# This chapter sets the size of each training step: a learning rate that rises, then falls (section 5.3 of the paper).
#
# Adam divides each gradient by an estimate of its usual size. In the first steps that estimate comes from a handful of batches, and the
# layers of a fresh model still shout at each other. Large steps in random directions can wreck it for good. Small steps are
# safe, and too slow for the rest of the training. So the paper starts small, climbs to a peak, and comes down again.

# %% tags=["export"]
from math import sqrt

# %%
import math

import matplotlib.pyplot as plt
import torch

from annotated_transformer.figures import INK, style

# %% [markdown]
# ## Up and down in one line
#
# Two curves, and the smaller one counts:
#
# $$
# \text{rate}(n) = d_\text{model}^{-0.5} \cdot \min\left(n^{-0.5},\; n \cdot \text{warmup}^{-1.5}\right)
# $$ (eq-schedule)
#
# The second term grows in a straight line with the step $n$: that is the **warm-up**. The first falls as $1/\sqrt{n}$. Wide models take
# smaller steps. We add a factor of our own, 1 in the paper, because small models on small data like larger steps.


# %% tags=["export"]
def learning_rate(step: int, d_model: int, warmup: int, factor: float = 1.0) -> float:
    """The learning rate of a step, counted from 1 (equation 3, times `factor`).

    Raises ValueError for a step or warm-up below 1.
    """
    if step < 1 or warmup < 1:
        raise ValueError(f"step and warmup count from 1, not from {min(step, warmup)}")
    return factor / sqrt(d_model) * min(1 / sqrt(step), step / (warmup * sqrt(warmup)))


# %% [markdown]
# ## Where is the peak?
#
# Where the two terms are equal, $n^{-0.5} = n \cdot \text{warmup}^{-1.5}$. So $n = \text{warmup}$, and the rate there is
#
# $$ \text{peak} = \frac{1}{\sqrt{d_\text{model} \cdot \text{warmup}}}. $$ (eq-peak)
#
# For the base model that is $1/\sqrt{512 \cdot 4000} = 0.0007$.

# %%
peak = learning_rate(4000, d_model=512, warmup=4000)
assert math.isclose(peak, (512 * 4000) ** -0.5)
assert max(range(1, 20_000), key=lambda n: learning_rate(n, 512, 4000)) == 4000
assert math.isclose(learning_rate(2000, 512, 4000), peak / 2)  # half way up, in a straight line
assert math.isclose(
    learning_rate(16_000, 512, 4000), peak / 2
)  # four times the steps, half the rate
print(f"peak {peak:.6f} at step 4000")

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-schedule", "caption": "How does the learning rate move? The peak is where the warm-up ends. A longer warm-up lowers it, and so does a wider model; long after, only the width matters."}, "image": {"alt": "Three curves that rise in a straight line and fall as one over the square root of the step. The peaks are at steps 4000, 8000 and 4000."}}
style()
figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
curves = [(512, 4000, "-", 14), (512, 8000, "--", 14), (1024, 4000, ":", -16)]
steps = range(1, 30_000, 50)
for d_model, warmup, line, shift in curves:
    axes.plot(steps, [learning_rate(n, d_model, warmup) for n in steps], line, color=INK)
    point = (13_000, learning_rate(13_000, d_model, warmup))
    label = f"d_model {d_model}, warm-up {warmup}"
    axes.annotate(label, point, (0, shift), textcoords="offset points")
    axes.plot(warmup, learning_rate(warmup, d_model, warmup), "o", color=INK)
axes.set(xlabel="step", ylabel="learning rate", xlim=(0, 30_000), ylim=(0, 8e-4))
plt.show()

# %% [markdown]
# ## What the rate multiplies
#
# The optimizer is **Adam** {cite:p}`kingma2015adam`. For each weight it keeps two running averages of the gradient $g_n$: of its value, $m$, and of its square, $v$.
# Both start at zero and are therefore too small at first; dividing by $1 - \beta^n$ mends that.
#
# $$
# m_n = \beta_1 m_{n-1} + (1 - \beta_1) g_n, \qquad
# v_n = \beta_2 v_{n-1} + (1 - \beta_2) g_n^2, \qquad
# \theta_n = \theta_{n-1} - \text{rate} \cdot \frac{m_n / (1 - \beta_1^n)}{\sqrt{v_n / (1 - \beta_2^n)} + \epsilon}
# $$ (eq-adam)
#
# The paper takes $\beta_1 = 0.9$, $\beta_2 = 0.98$ and $\epsilon = 10^{-9}$. The usual $\beta_2$ is 0.999; at 0.98 the estimate of the size remembers the last 50 steps in place
# of the last 1,000. We run the formula by hand beside PyTorch's optimizer.

# %%
weight = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
ours, m, v = weight.detach().clone(), torch.zeros(2).double(), torch.zeros(2).double()
adam = torch.optim.Adam([weight], betas=(0.9, 0.98), eps=1e-9)
for n in range(1, 51):
    adam.param_groups[0]["lr"] = rate = learning_rate(n, d_model=512, warmup=10)
    adam.zero_grad()
    (weight**4).sum().backward()
    adam.step()
    g = 4 * ours**3
    m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g**2
    ours = ours - rate * (m / (1 - 0.9**n)) / ((v / (1 - 0.98**n)).sqrt() + 1e-9)
torch.testing.assert_close(ours, weight.detach())
print("fifty steps by hand equal torch.optim.Adam")

# %% [markdown]
# ## What to remember
#
# - The rate climbs in a straight line for `warmup` steps, then falls as one over the square root.
# - The peak is $1/\sqrt{d_\text{model} \cdot \text{warmup}}$: 0.0007 for the base model.
# - One step of the schedule is one update of the weights, not one batch that was looked at.
