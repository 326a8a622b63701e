"""The benchmarks: the statistic by hand, peers that compute what we compute, and every benchmark in seconds.

The peers are installed by tests/benchmarks/requirements.txt; where they are not, what needs them is skipped.
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

import transformer.decoding
from transformer import Transformer, TransformerConfig, load_toy_translator
from transformer.data import make_batch

HERE = Path(__file__).resolve().parent / "benchmarks"
sys.path.append(str(HERE))

import contest  # noqa: E402
import decoding  # noqa: E402
import gpu_step  # noqa: E402
import lengths  # noqa: E402
import peers  # noqa: E402
import preparation  # noqa: E402
import run  # noqa: E402
import startup  # noqa: E402
import training_step  # noqa: E402
import tricks  # noqa: E402
import turns  # noqa: E402
import where  # noqa: E402

CLOSE = {"rtol": 1e-4, "atol": 1e-4}  # float32


def needs(package: str) -> None:
    if not find_spec(package):
        pytest.skip(f"{package} is not installed: pip install -r tests/benchmarks/requirements.txt")


@pytest.fixture(scope="module")
def model() -> Transformer:
    """A small model none of whose weights stand out by being 0 or 1."""
    torch.manual_seed(1)
    model = Transformer(TransformerConfig(40, 40, d_model=16, n_layers=2, n_heads=4, d_ff=24))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model.eval()


@pytest.fixture(scope="module")
def batch():
    """Two pairs of unlike lengths, so that there is padding on both sides."""
    return make_batch([([5, 6, 7, 8, 9], [10, 11]), ([12, 13], [14, 15, 16, 17])])


# -------------------------------------------------------------------------------------------------------- the statistic


def test_the_statistic_by_hand():
    seconds = {
        "ours": [[1.0, 4.0], [2.0, 3.0]],  # fastest: 1 + 3 = 4; rounds: 5 and 5
        "other": [[2.0, 8.0], [9.0, 6.0]],  # fastest: 2 + 6 = 8; rounds: 10 and 15
    }
    assert turns.fastest(seconds["ours"]) == 4.0 and turns.fastest(seconds["other"]) == 8.0
    assert turns.compare(seconds) == {"other": {"ratio": 2.0, "lowest": 2.0, "highest": 3.0}}


def test_contestants_take_turns_item_by_item_after_a_round_that_does_not_count():
    done = []
    contestants = {name: lambda item, name=name: done.append(name + item) for name in "xyz"}
    seconds = turns.take_turns(contestants, ["1", "2", "3"], rounds=2)
    assert len(done) == 3 * 3 * 3, "two rounds and the one before them"
    assert [done[i][1] for i in range(0, 27, 3)] == list("123" * 3), "all do an item before anyone does the next"
    assert all({name for name, _ in done[i : i + 3]} == set("xyz") for i in range(0, 27, 3))
    assert {done[i][0] for i in range(0, 27, 3)} == set("xyz"), "each comes first at times"
    assert {name: np.shape(times) for name, times in seconds.items()} == dict.fromkeys("xyz", (2, 3))


def test_the_time_that_is_measured_is_the_contestants_own(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(turns.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(turns.time, "sleep", lambda pause: clock.__setitem__(0, clock[0] + 100))
    work = {
        name: lambda item, cost=cost: clock.__setitem__(0, clock[0] + cost * item)
        for name, cost in (("a", 1), ("b", 3))
    }
    assert turns.take_turns(work, [1, 2], rounds=1, pause=1.0) == {"a": [[1.0, 2.0]], "b": [[3.0, 6.0]]}


def test_a_peer_that_is_missing_is_named_and_outputs_are_compared():
    made = contest.Contest(
        make={
            "ours": lambda: lambda item: [[item], [2]],
            "half": lambda: lambda item: [[item], [3]],
            "gone": lambda: pytest.fail("made although it is not installed"),
        },
        items=[1, 5],
        tokens=4,
        needs={"gone": "no_such_package.part"},
    )
    result = contest.measure(made, rounds=1, pause=0.0)
    assert result["skipped"] == {"gone": "no_such_package is not installed"}
    assert set(result["seconds"]) == {"ours", "half"} and result["same_as_ours"] == {"half": 0.5}


# ------------------------------------------------------------------------------------------------------------- the work


@pytest.mark.parametrize(("work", "mean", "number"), [("multi30k", 14, 1000), ("newstest2014", 28, 1001)])
def test_lengths_are_those_of_real_text(work, mean, number):
    measured = lengths.read_lengths(work)
    assert len(measured) == number and all(1 <= n <= 120 and 1 <= m <= 120 for n, m in measured)
    assert abs(np.mean(measured) - mean) < 1
    assert [(len(s), len(t)) for s, t in lengths.random_pairs(work, 50)] == measured
    ids = [i for pair in lengths.random_pairs(work, 50, 200, seed=3) for side in pair for i in side]
    assert min(ids) == 4 and max(ids) == 49


def test_lengths_are_made_anew(test_data, tmp_path, monkeypatch):
    """With the real text at hand, the shorter set's numbers come out as they are in the file."""
    monkeypatch.setattr(lengths, "FILE", tmp_path / "lengths.json")
    monkeypatch.setattr(lengths, "TESTS", {"multi30k": lengths.TESTS["multi30k"]})
    lengths.main()
    kept = json.loads((HERE / "lengths.json").read_text())["multi30k"]
    assert json.loads((tmp_path / "lengths.json").read_text()) == {"multi30k": kept}


# ------------------------------------------------------------------------------------------------------------ the peers


def test_torch_computes_what_we_compute(model, batch):
    theirs = peers.TorchTransformer(model).eval()
    real = batch.tgt_in != 0
    # Without gradients its encoder would take another, "fast" path, which training never takes.
    torch.testing.assert_close(theirs(batch.src, batch.tgt_in)[real], model(batch.src, batch.tgt_in)[real], **CLOSE)
    assert sum(p.numel() for p in theirs.parameters()) == sum(p.numel() for p in model.parameters())


def test_marian_computes_what_we_compute(model, batch):
    needs("transformers")
    theirs = peers.to_marian(model)
    real, mask = batch.tgt_in != 0, (batch.src != 0).long()
    logits = theirs(input_ids=batch.src, attention_mask=mask, decoder_input_ids=batch.tgt_in).logits
    torch.testing.assert_close(logits[real], model(batch.src, batch.tgt_in)[real], **CLOSE)
    assert theirs.config._attn_implementation == "sdpa", "its fastest attention"
    assert not theirs.training and peers.to_marian(model.train()).training
    model.eval()


def test_joey_computes_what_we_compute(model, batch):
    needs("joeynmt")
    theirs, real = peers.to_joey(model), batch.tgt_in != 0
    logits = theirs(batch.src, batch.tgt_in)
    torch.testing.assert_close(logits[real], model(batch.src, batch.tgt_in)[real], rtol=1e-3, atol=1e-3)  # another ε
    assert sum(p.numel() for p in theirs.parameters()) == sum(p.numel() for p in model.parameters())


def test_ctranslate2_computes_what_we_compute(model, batch, tmp_path):
    needs("ctranslate2")
    peers.to_ctranslate2(model, tmp_path)
    theirs = pytest.importorskip("ctranslate2").Translator(str(tmp_path), compute_type="float32")
    for source, target, read in zip(batch.src.tolist(), batch.tgt_out, batch.tgt_in, strict=True):
        source = [i for i in source if i]
        target, read = target[target != 0], read[read != 0]
        [score] = theirs.score_batch([peers.to_tokens(source)], [peers.to_tokens(target[:-1].tolist())])
        ours = model(torch.tensor([source]), read[None]).log_softmax(-1)[0]
        torch.testing.assert_close(torch.tensor(score.log_probs), ours[torch.arange(len(target)), target], **CLOSE)


@pytest.mark.parametrize("peer", ["Marian", "CTranslate2"])
@pytest.mark.parametrize("search", ["beam", "greedy"])
def test_all_translate_alike(peer, search):
    """The shipped model, to the end of each sentence; and random weights, which write as much as they are told."""
    needs({"Marian": "transformers", "CTranslate2": "ctranslate2"}[peer])
    made = decoding.contest("toy", search, batch_size=8, n_items=1, peers=(peer,))
    ours, theirs = (made.make[name]()(made.items[0]) for name in ("ours", peer))
    assert ours == theirs and {len(ids) for ids in ours} != {made.items[0][0][2]}
    made = decoding.contest("tiny", search, batch_size=3, n_items=2, peers=(peer,))
    for item in made.items:
        ours, theirs = (made.make[name]()(item) for name in ("ours", peer))
        assert [len(ids) for ids in ours] == [len(ids) for ids in theirs] == [item[0][2]] * 3


def test_tokens_of_ctranslate2():
    assert peers.to_tokens([0, 1, 2, 3, 4, 39]) == ["<pad>", "<s>", "</s>", "<unk>", "4", "39"]
    assert peers.to_ids(peers.to_tokens(list(range(9)))) == list(range(9))


# ------------------------------------------------------------------------------------------------------- the benchmarks


def test_training_steps():
    made = training_step.contest("tiny", n_batches=2, max_tokens=60, peers=("torch",))
    assert made.tokens == sum(batch.n_tokens for batch in made.items)
    result = contest.measure(made, rounds=2, pause=0.0)
    assert set(result["tokens_per_second"]) == {"ours", "torch"} and result["ratios"]["torch"]["ratio"] > 0
    half = training_step.contest("tiny", 0.0, "bfloat16", n_batches=1, max_tokens=60, peers=())
    half.make["ours"]()(half.items[0])


def test_decoding_one_sentence_at_a_time():
    made = decoding.contest("tiny", batch_size=1, n_items=2, peers=())
    assert [len(item) for item in made.items] == [4, 4] and all(src.size(0) == 1 for src, _, _ in made.items[0])
    result = contest.measure(made, rounds=1, pause=0.0)
    assert result["tokens"] == sum(most for item in made.items for _, _, most in item) and result["ratios"] == {}


def test_a_contestant_in_a_process_of_its_own(monkeypatch):
    """It does the items it is asked for, in that order, and tells what came out; if it ends, that is told."""
    monkeypatch.setenv("PYTHONPATH", str(HERE.parents[1]))
    arguments = {"size": "tiny", "batch_size": 2, "n_items": 2, "peers": ["Marian"]}
    made = decoding.contest(**arguments)
    command = [sys.executable, str(Path(decoding.__file__)), json.dumps(arguments)]
    outputs = {}
    with contest._apart([*command, "--serve", "ours"], outputs) as run:
        for i in (1, 0, 1):
            run(i)
    own = made.make["ours"]()
    assert outputs == {i: contest._marks(own(made.items[i])) for i in (0, 1)} and outputs[0] != outputs[1]
    result = contest.measure(made, rounds=1, pause=0.0, command=command)
    assert result["same_as_ours"] == {"Marian": 1.0} and set(result["seconds"]) == {"ours", "Marian"}
    nobody = contest._apart([*command, "--serve", "nobody"], {})
    with pytest.raises(RuntimeError, match="--serve nobody ended before it was ready"), nobody:
        pass


@pytest.mark.parametrize("batch_size", [1, 8])
def test_tricks_change_no_translation(batch_size, monkeypatch):
    largest, select = transformer.decoding._largest, tricks.DecoderCache.select
    searched = []
    monkeypatch.setattr(transformer.decoding, "_largest", lambda *them: searched.append(them) or largest(*them))
    made = tricks.contest("decoding", "small", batch_size, n_items=1)
    ways = {name: make()(made.items[0]) for name, make in made.make.items()}
    assert set(ways) == {"simple", "one search", "plain", "one past", "turned", "ours"}
    assert all(written == ways["ours"] for written in ways.values())
    steps = sum(most for _, _, most in made.items[0])
    assert len(searched) == 5 * steps, "the simplest way does without"
    assert tricks.DecoderCache.select is select


def test_tricks_of_training():
    made = tricks.contest("training", "tiny", n_items=2, max_tokens=60)
    for make in made.make.values():
        make()(made.items[0])


def test_where_time_goes():
    for operation, kind in {
        "mkldnn::_linear_pointwise": "products",
        "aten::addmm": "products", "aten::_softmax": "softmax and loss", "aten::native_layer_norm": "normalization",
        "aten::_log_softmax_backward_data": "softmax and loss", "aten::bernoulli_": "dropout", "aten::copy_": "copies",
        "aten::_scaled_dot_product_flash_attention_for_cpu": "attention", "aten::topk": "search", "aten::add": "other",
        "aten::random_": "dropout", "aten::index": "copies", "aten::index_put_": "copies", "aten::mm": "products",
        "aten::mul": "other", "aten::lerp_": "optimizer", "aten::exp_": "softmax and loss", "aten::expand": "other",
    }.items():  # fmt: skip
        assert where.kind(operation) == kind, operation
    result = where.measure(where.contest("training", "tiny", n_batches=1, max_tokens=60), rounds=1)
    assert abs(sum(result["shares"].values()) - 1) < 0.01 and 0 < result["outside"] < 1
    assert {"products", "attention", "optimizer", "dropout"} <= set(result["shares"]) and result["calls"] > 100


def test_preparation():
    made = preparation.contest(n_pairs=300, vocab_size=800)
    result = contest.measure(made, rounds=1, pause=0.0)
    assert result["same_as_ours"] == {"SentencePiece": 1.0}
    [nothing] = preparation.contest("prepare", n_pairs=200, vocab_size=800).items
    preparation.contest("prepare", n_pairs=200, vocab_size=800).make["ours"]()(nothing)
    assert list(preparation.make_lines(5)) == list(preparation.make_lines(5)) != list(preparation.make_lines(5, seed=1))


def test_startup_measures_processes():
    made = startup.contest()
    seconds = turns.take_turns({name: made.make[name]() for name in ("ours", "python")}, [0], rounds=1)
    assert turns.fastest(seconds["python"]) > 0
    assert "transformer --help" in made.make


def test_memory_of_a_contestant_alone():
    """In a process of its own: weights, gradients and two moments of a million parameters, and a little work."""
    result = contest.start(
        "training_step", {"size": "tiny", "n_batches": 1, "max_tokens": 60}, "--alone", "ours", threads=1
    )
    assert 4 * 4 < result["peak_mib"] < 500 and result["seconds"] > 0


def test_a_benchmark_that_fails_says_why():
    with pytest.raises(RuntimeError, match="unexpected keyword argument 'no_such'"):
        contest.start("startup", {"no_such": 1}, threads=1)


def test_gpu_step_on_the_cpu():
    options = {"size": "tiny", "tokens": 120, "precision": "float32", "device": "cpu"}
    result = gpu_step.measure(updates=2, warm_up=1, **options)
    assert result["updates"] == 2 and result["target_tokens_per_second"] > 0 and 0 < result["fraction_of_peak"] < 1.5
    assert set(gpu_step.parts(updates=1, **options)) == {
        "to the device", "encoder", "decoder", "output projection", "loss", "backward", "optimizer",
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- the command


def test_what_is_finished_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "RESULT", tmp_path / "benchmarks.json")
    monkeypatch.setattr(run, "commit", lambda paths: "0" * 40)
    made = []
    monkeypatch.setattr(run, "run", lambda name, *rest: made.append(name) or {"seconds": {"ours": 0.5}})
    threads = torch.get_num_threads()
    run.record(["startup"], 7, threads)
    run.record(["startup", "encode text"], 7, threads)
    assert made == ["startup", "encode text"]
    run.record(["startup"], 9, threads)
    assert made[2:] == ["startup"], "another number of rounds is another measurement"
    recorded = json.loads(run.RESULT.read_text())
    assert list(recorded["runs"]) == ["startup", "encode text"]
    assert "tests/benchmarks/decoding.py" in recorded["code"] and "transformer/decoding.py" in recorded["code"]
    assert not list(tmp_path.glob(".*"))
    monkeypatch.setattr(run, "code", dict)
    run.record(["encode text"], 7, threads)
    assert list(json.loads(run.RESULT.read_text())["runs"]) == ["encode text"], "other code: all anew"


def test_the_table_shows_every_contestant():
    results = {
        "one": {
            "seconds": {"ours": 1.0, "other": 2.0},
            "tokens_per_second": {"ours": 10, "other": 5},
            "ratios": {"other": {"ratio": 2.0, "lowest": 1.9, "highest": 2.2}},
            "alone": {"ours": {"peak_mib": 70.0, "seconds": 1.0}},
        },
        "two": {"alone": {"ours": {"peak_mib": 80.0, "seconds": 3.0}}},
    }
    lines = [line.split() for line in run.table(results).splitlines()]
    assert lines[1:] == [
        ["one", "ours", "10", "1.000", "70.0"],
        ["one", "other", "5", "2.000", "2.0", "1.9–2.2"],
        ["two", "ours", "3.000", "80.0"],
    ]


def test_every_benchmark_can_be_made_and_its_quick_form_too():
    """The arguments of the table fit the functions that get them; sizes are taken tiny."""
    for benchmark, arguments in run.BENCHMARKS.values():
        quick = {**arguments, **run.QUICK[benchmark]}
        if quick.get("task") != "encode":
            assert run.MODULES[benchmark].contest(**quick).items


def test_random_weights_never_end():
    model = decoding.endless(peers.make_ours("tiny", 0.0)).eval()
    src = make_batch(lengths.random_pairs("multi30k", 1000)[:4]).src
    logits = model(src, src)
    assert bool((logits[..., 2] < logits.topk(8).values[..., -1]).all())
    assert not load_toy_translator().model.training
