"""Outputs drawn at random under a grammar, as a model without an opinion would say them."""

import random

from radixd.chassis.grammars import GrammarError, Grammars, allowed_ids
from radixd.chassis.vocabulary import fake_vocabulary

EOS = 257
BYTES = Grammars(fake_vocabulary(), vocab_size=264, eos_token_ids=(EOS,))
_CLOSING = b'"]}'
_PATIENCE = 60
"""Bytes after which whatever closes is preferred."""
_MOST = 2000


def draw(grammar: str, seed: int) -> str | None:
    """One whole output; None: it did not end in time."""
    matcher, said, rng = BYTES.matcher(grammar), bytearray(), random.Random(seed)
    while len(said) < _MOST:
        allowed = allowed_ids(matcher.mask())
        closing = [token for token in allowed if token == EOS or token in _CLOSING]
        if closing and (len(said) > _PATIENCE or rng.random() < 0.2):
            token = EOS if EOS in closing else rng.choice(closing)
        else:
            token = rng.choice([t for t in allowed if 32 <= t < 127 or t == EOS] or allowed)
        if token == EOS:
            return said.decode()
        matcher.take((token,))
        said.append(token)
    return None


def accepts(grammar: str, text: str) -> bool:
    """Whether this could be an output."""
    matcher = BYTES.matcher(grammar)
    try:
        for byte in text.encode():
            if byte not in allowed_ids(matcher.mask()):
                return False
            matcher.take((byte,))
    except GrammarError:
        return False
    return matcher.is_complete
