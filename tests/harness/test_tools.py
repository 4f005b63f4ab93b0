"""Tools of a workflow: their results reach their readers, cost nothing on the clock, and change no guarantee."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from harness.backends.hf import HF
from harness.backends.hf_tiny import Tiny
from harness.chat import ChatScript
from harness.errors import UserError
from harness.records import Route
from harness.sandbox.base import Execution, Level, Outcome
from harness.tasks import lookup
from harness.tasks.base import Item
from harness.tasks.lookup import answer, marked, read_extracts
from harness.tasks.mmlu import Mmlu
from harness.tasks.tool import ToolUse, tools_of
from harness.trajectory import Runner
from harness.workflow import Workflow
from harness.workload import check_context, prompts_sha256
from methods.base import Method
from methods.cacheblend import CacheBlend
from methods.dense import DenseMethod
from methods.full_reuse import FullReuse
from methods.kvcmas import KVCMAS
from methods.kvcomm import KVComm
from tests.harness.trajectories import QUESTIONS, EchoTask, ids, run_all

CONF = Path(__file__).parents[2] / "conf" / "task"
FULL = Workflow("full", "full", max_new_tokens=3)
LAYOUTS = [FULL, Workflow("full", "full", max_new_tokens=3, layout="contiguous")]
TOOL = ToolUse("first", ("second", "final"), "Somebody looked it up", tokens=20)


class Counter:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time


class Consulting(EchoTask):
    """The echo task, with a tool on the first agent's output and programs as answers; both take an hour."""

    def __init__(self, questions: Any, tool: ToolUse = TOOL, result: str | None = None) -> None:
        super().__init__(questions)
        self.tools, self.result, self.clock, self.seen = (tool,), result, Counter(), list[str]()

    def use(self, tool: ToolUse, output: str, item: Item) -> str:
        self.clock.time += 3600.0
        self.seen.append(output)
        return f"looked up {item.id}" if self.result is None else self.result

    def execution(self, prediction: str, item: Item) -> Execution:
        self.clock.time += 3600.0
        return Execution(Outcome.failed, "a test failed", Level.isolated)


@pytest.fixture
def engine(tiny_engine: Any) -> HF:
    made: HF = tiny_engine(family="llama", rope="llama3")
    return made


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return Tiny().tokenizer()


def consulting(tokenizer: Any, workflow: Workflow = FULL, questions: Any = QUESTIONS[:1], **more: Any) -> ChatScript:
    task = Consulting(questions, **more)
    return ChatScript(task, task.items, workflow, tokenizer, frozenset())


@pytest.mark.parametrize("workflow", LAYOUTS, ids=lambda w: w.layout)
@pytest.mark.parametrize("before", [False, True])
def test_readers_see_the_result_beside_the_output(engine: HF, tokenizer: Any, workflow: Workflow, before: bool) -> None:
    chat = consulting(tokenizer, workflow, tool=ToolUse("first", ("second", "final"), "Found", before))
    prompts: list[Any] = []
    original = chat.prompt
    chat.prompt = lambda step, spans: prompts.append(original(step, spans)) or prompts[-1]  # type: ignore[method-assign]
    (finished,) = run_all(DenseMethod(), engine, chat)
    assert [hop.tool for hop in finished.hops] == ["looked up q0", "", "", ""]
    shown = chat._encode("\n\nFound:\n") + chat._encode("looked up q0")
    for index, prompt in enumerate(prompts):
        names = [place.span.id for place in prompt.placed if place.span is not None]
        assert ("tool:first:0" in names) == (index in (1, 3))
        if index in (1, 3):
            place = names.index("tool:first:0")
            assert names[place + (1 if before else -1)] == "output:first:0"
            assert (
                next(s.ids for s in prompt.segments if getattr(s, "span", None) and s.span.id == "tool:first:0")
                == shown
            )


@pytest.mark.parametrize(
    "method",
    [
        FullReuse("rotated"),
        KVCMAS(gate="always"),
        KVCMAS(gate="always", glue="rotate"),
        KVComm(gate="always"),
        CacheBlend(),
    ],
    ids=["full_reuse", "kvcmas", "kvcmas-rotate", "kvcomm", "cacheblend"],
)
def test_every_method_copes_with_results_of_any_length(engine: HF, tokenizer: Any, method: Method) -> None:
    task = Consulting(QUESTIONS[:3])
    results = iter(["", "one two three " * 20, "five six"])
    task.use = lambda tool, output, item: next(results)  # type: ignore[method-assign]
    chat = ChatScript(task, task.items, FULL, tokenizer, frozenset())
    found = run_all(method, engine, chat)
    assert [len(f.hops) for f in found] == [4] * 3
    lengths = [f.hops[1].prompt_tokens for f in found]
    assert lengths[1] > lengths[2]
    assert any(hop.route is Route.reuse for f in found for hop in f.hops)


def test_the_same_request_again_is_exact_with_a_tool_too(engine: HF, tokenizer: Any) -> None:
    chat = consulting(tokenizer, questions=[QUESTIONS[0], QUESTIONS[0]], result="It weighs nine grams.")
    method = KVCMAS(codec="full", factor_dtype="float32", gate="always")
    truth, found = run_all(DenseMethod(), engine, chat), run_all(method, engine, chat, shadow=True)
    assert [h.route for h in found[1].hops[1:]] == [Route.reuse] * 3
    assert ids(found) == ids(truth)
    assert all((hop.first_token_kl or 0.0) < 1e-5 for hop in found[1].hops)


def test_tools_scoring_and_shadows_are_outside_the_clock(engine: HF, tokenizer: Any, monkeypatch: Any) -> None:
    chat = consulting(tokenizer)
    monkeypatch.setattr(engine, "clock", chat.task.clock)  # type: ignore[attr-defined]
    method = FullReuse("rotated")
    method.bind(engine.shape, 0)
    finished = Runner(method, engine, chat, frozenset(), shadow=True).run(chat.cases()[0])
    assert finished.seconds == 0.0
    assert all(hop.e2e_s == hop.ttft_s == 0.0 for hop in finished.hops)
    assert chat.task.clock.time == 2 * 3600.0  # type: ignore[attr-defined]  # one tool, one program: not one a shadow
    assert finished.verdict.execution is not None


def test_the_longest_result_counts_before_anything_loads(tokenizer: Any) -> None:
    short, long = (consulting(tokenizer, tool=ToolUse("first", ("final",), "Found", tokens=n)) for n in (1, 3_000))
    check_context(short, short.cases(), 2_500, "echo")
    with pytest.raises(UserError, match="agent final"):
        check_context(long, long.cases(), 2_500, "echo")
    titled = consulting(tokenizer, tool=ToolUse("first", ("final",), "Seen", tokens=1))
    assert prompts_sha256(short, short.cases()) != prompts_sha256(titled, titled.cases())


def test_results_are_cut_in_the_prompt_and_whole_in_the_record(engine: HF, tokenizer: Any) -> None:
    chat = consulting(tokenizer, result="word " * 500)
    (finished,) = run_all(DenseMethod(), engine, chat)
    assert finished.hops[0].tool == "word " * 500
    result = chat.tool(chat.cases()[0], chat.steps[0], ())
    assert result is not None
    bound = chat.tool_bound(chat.steps[0])
    assert bound is not None
    assert len(result.span) == len(bound)


@pytest.mark.parametrize(
    "value",
    [
        "lookup",
        ["lookup"],
        [{"of": "expert"}],
        [{"of": "nobody", "readers": ["final"], "title": "x"}],
        [{"of": "expert", "readers": ["stranger"], "title": "x"}],
        [{"of": "expert", "readers": ["final"], "title": "x", "tokens": 0}],
        [{"of": "expert", "readers": ["final"], "title": "x", "more": 1}],
    ],
)
def test_broken_tools_are_refused(value: object) -> None:
    with pytest.raises(UserError, match=r"task\.tools"):
        tools_of(value, ["expert", "final"])


def mmlu(**options: Any) -> Mmlu:
    made: Mmlu = instantiate(OmegaConf.load(CONF / "mmlu.yaml"), **options)
    return made


def test_marked_terms() -> None:
    text = 'The @Black Death, @"Machu Picchu" and @[pH]; @{Venus}: a planet. @**Danube** rises. @Kenya is. @Fat @Mars'
    assert marked(text) == [["Black", "Death"], ["Machu", "Picchu"], ["pH"], ["Venus"], ["Danube"], ["Kenya"]]
    assert marked("Nothing is marked here, @ and @@ aside.") == []


def test_the_frozen_table_answers_and_says_what_it_lacks() -> None:
    made = mmlu()
    (tool,), item = made.tools, made.load().items[0]
    assert (tool.of, tool.readers, tool.before) == ("expert", ("searcher",), True)
    text = made.use(tool, "Key terms: @Venus, @the Equator crosses much; @Flux capacitor.", item)
    paragraphs = text.split("\n\n")
    assert paragraphs[0].startswith("Venus: Venus is the second planet")
    assert paragraphs[1].startswith("the Equator: The Equator passes")
    assert paragraphs[2] == "no entry for Flux capacitor"
    assert made.use(tool, "I name nothing.", item) == "no term was marked"
    assert made.use(tool, text, item) == made.use(tool, text, item)


def test_own_tables_and_the_rows_of_a_run(tmp_path: Path) -> None:
    table, rows = tmp_path / "terms.jsonl", tmp_path / "rows.jsonl"
    table.write_text(json.dumps({"term": "Flux", "extract": "A flow."}))
    said = answer("@Flux and @Nothing", read_extracts(str(table)))
    assert said == "Flux: A flow.\n\nno entry for Nothing"
    rows.write_text(json.dumps({"sample_id": "a", "hops": [{"agent": "expert", "tool": said}, {"tool": ""}]}))
    assert answer("@Flux and @Nothing", read_extracts(str(rows))) == said
    with pytest.raises(UserError, match=r"task\.lookup=.*nowhere\.jsonl cannot be read"):
        mmlu(lookup=str(tmp_path / "nowhere.jsonl")).load()
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"word": "Flux"}')
    with pytest.raises(UserError, match="missing column term, extract"):
        mmlu(lookup=str(broken)).load()


def test_the_live_encyclopedia_is_asked_only_when_told_and_never_fails_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            known = self.path.endswith("titles=Danube")
            page = {"extract": "A river.\nIt is long."} if known else {"missing": ""}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"query": {"pages": {"1": page}}}).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setattr(lookup, "API", f"http://127.0.0.1:{server.server_port}/api")
    try:
        made = mmlu(lookup="live")
        item = made.load().items[0]
        assert asked == []
        assert (
            made.use(made.tools[0], "@Danube river, @Xyz", item) == "Danube: A river. It is long.\n\nno entry for Xyz"
        )
        assert len(asked) == 3
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    with pytest.raises(OSError):
        made.use(made.tools[0], "@Danube", item)
