"""How much of a step prompts may take."""

from scheduler_svc.core.chunking import chunk_of, order_prefills, prefill_budget
from scheduler_svc.core.step_time import MIN_PREFILL_TOKENS, StepTimeModel
from tests.scheduler_svc.core.plain import plain_request

MS = 1_000_000


class Config:
    """What chunks depend on."""

    def __init__(self, **changes):
        self.max_batch_tokens = 1000
        self.chunk_size = 256
        self.chunk_sizes = {"chat": 512, "longform": 2048}
        self.prefill_share = 1.0
        self.itl_target_ms = 0.0
        for name, value in changes.items():
            setattr(self, name, value)


def known_model():
    """A step takes 2 ms, and 0.01 ms each row and prompt token."""
    model = StepTimeModel()
    for i in range(200):
        rows, tokens = i % 50, i * 37 % 512
        model.note(rows, tokens, 2 * MS + (rows + tokens) * MS // 100)
    return model


def test_chunk_is_that_of_the_workload_class():
    def chunk(workload):
        return chunk_of(Config(), plain_request(workload=workload))

    assert chunk("chat") == 512
    assert chunk("longform") == 1000, "a step is no longer"
    assert chunk("") == chunk("unheard of") == 256


def test_prompts_have_the_whole_step_when_nobody_decodes():
    config = Config(prefill_share=0.1, itl_target_ms=0.001)
    assert prefill_budget(config, 0, known_model()) == 1000


def test_prompts_have_their_share_while_others_decode():
    model = StepTimeModel()
    assert prefill_budget(Config(prefill_share=0.3), 10, model) == 300
    assert prefill_budget(Config(prefill_share=0.0001), 10, model) == 1
    assert prefill_budget(Config(), 10, model) == 990
    assert prefill_budget(Config(), 1000, model) == 0
    assert prefill_budget(Config(itl_target_ms=5.0), 1200, known_model()) == 0


def test_target_bounds_the_predicted_step():
    model = known_model()
    bounded = prefill_budget(Config(itl_target_ms=5.0), 20, model)
    assert 270 <= bounded <= 280, "2 ms + 20 rows + 280 tokens of 0.01 ms"
    assert model.predict_ns(20, bounded) < 5 * MS <= model.predict_ns(20, bounded + 1)
    assert prefill_budget(Config(itl_target_ms=5.0, prefill_share=0.1), 20, model) == 100
    assert prefill_budget(Config(itl_target_ms=1.0), 20, model) == MIN_PREFILL_TOKENS
    assert prefill_budget(Config(itl_target_ms=5.0), 20, StepTimeModel()) == 980, "no idea yet"


def test_oldest_first_and_then_the_shortest():  # field case 49
    prefills = [plain_request(i, prompt=prompt) for i, prompt in enumerate([90, 50, 10, 70, 10])]
    prefills[3].num_computed = 65
    order = [request.arrival for request in order_prefills(prefills)]
    assert order == [0, 3, 2, 4, 1]
    assert order_prefills([]) == []
