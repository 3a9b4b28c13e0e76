"""AOQ's adaptive quintuplet loss in a plain PyTorch loop, on embeddings of your own.

Every loss of `counterfoil.losses` is called with plain tensors: a matrix of scores, and scores of
mined pairs in rows aligned with the true pairs of the batch.
"""

import argparse

import torch
from torch.nn.functional import normalize

from counterfoil import losses

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--smoke", action="store_true", help="a few steps on little data")
smoke = parser.parse_args().smoke
pairs, steps = (200, 30) if smoke else (2000, 300)

# image n and text n belong together: two noisy views of one vector
torch.manual_seed(0)
meaning = torch.randn(pairs, 32)
images, texts = (meaning + 0.5 * torch.randn(pairs, 32) for _ in range(2))
to_image, to_text = torch.nn.Linear(32, 16), torch.nn.Linear(32, 16)
loss_function = losses.AdaptiveQuintuplet(online=0.2, offline=0.0)
optimiser = torch.optim.Adam([*to_image.parameters(), *to_text.parameters()], lr=1e-2)


def encode() -> tuple[torch.Tensor, torch.Tensor]:
    """Return unit vectors of all images and of all texts."""
    return normalize(to_image(images), dim=1), normalize(to_text(texts), dim=1)


for step in range(steps):
    if step % 10 == 0:  # mine: the hardest wrong text of each image and wrong image of each text
        with torch.no_grad():
            i, t = encode()
            wrong = (i @ t.T).fill_diagonal_(-torch.inf)
            mined_text, mined_image = wrong.argmax(1), wrong.argmax(0)
    batch = torch.randint(pairs, (64,)).unique()
    i, t = encode()
    other_text, other_image = mined_text[batch], mined_image[batch]
    loss = loss_function(
        i[batch] @ t[batch].T,  # (B, B), the true pairs on the diagonal
        hard_text=(i[batch] * t[other_text]).sum(1),
        hard_image=(i[other_image] * t[batch]).sum(1),
        cross=(i[other_image] * t[other_text]).sum(1),
        companion=(i[other_text] * t[other_image]).sum(1),  # text n belongs to image n
    )
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    if step % (steps // 3) == 0 or step == steps - 1:
        recall = ((i @ t.T).argmax(1) == torch.arange(pairs)).float().mean()
        print(f"step {step}: loss {loss.item() / len(batch):.3f}, R@1 {100 * recall:.1f}")
