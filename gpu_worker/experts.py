"""A mixture of experts: each token through the few its router chooses (Shazeer et al., 2017).

Tokens are sorted by expert, so that each expert's are a run; nothing here waits for a device, and
shapes follow from the number of tokens alone.  A token's bits depend on the token alone, as far as
the products' do.  Not here: the products (weight_home), the gate (arithmetic).
"""

from collections.abc import Callable

import torch

from gpu_worker.decoder_weights import Experts


def mix_experts(
    x: torch.Tensor, experts: Experts, gated: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """[num_tokens, hidden] to the same; `gated` is that of Arithmetic."""
    rules = experts.rules
    # Probabilities in float32 whatever the type of the weights, as the models were trained.
    chances = experts.router(x).float().softmax(dim=-1)
    shares, chosen = chances.topk(rules.num_chosen, dim=-1)
    if rules.renormalised:
        shares = shares / shares.sum(dim=-1, keepdim=True)
    of_expert, order = chosen.flatten().sort(stable=True)
    numbers = torch.arange(rules.num_experts, device=x.device)
    ends = torch.searchsorted(of_expert, numbers, right=True, out_int32=True)
    rows = x.index_select(0, order // rules.num_chosen)
    mixed = experts.down(gated(experts.gate_up(rows, ends)), ends)
    back = torch.empty_like(mixed).index_copy_(0, order, mixed).view(*chosen.shape, -1)
    total = back[:, 0] * shares[:, :1]
    for rank in range(1, rules.num_chosen):  # in one order, whatever the number of tokens
        total = total + back[:, rank] * shares[:, rank : rank + 1]
    return experts.whole(total.to(x.dtype))
