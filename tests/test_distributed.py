"""Section 5.2: the same update, whatever the number of parts, processes and machines."""

import contextlib
import dataclasses
import importlib.util
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
import safetensors.torch
import torch

from transformer import TrainingConfig, Transformer, TransformerConfig, train
from transformer.checkpoints import list_checkpoints, load_checkpoint
from transformer.data import TokenBatches, copy_task, make_batch
from transformer.distributed import gather_from_ranks, rank, share_over_ranks, world_size

# Everything that several processes do, once alone and once together. The tests import it, torchrun runs it.
PROGRAM = '''
import dataclasses, itertools, json, os, signal, sys, time
from pathlib import Path

import safetensors.torch
import torch

import transformer.training as training
from transformer import Stopped, TrainingConfig, Transformer, TransformerConfig, perplexity, train
from transformer.checkpoints import list_checkpoints
from transformer.data import TokenBatches, copy_task, make_batch
from transformer.distributed import (
    gather_from_ranks, join_processes, leave_processes, rank, share_over_ranks, world_size
)

torch.set_num_threads(1)


def make_model(seed=0, dropout=0.0):
    torch.manual_seed(seed)
    return Transformer(TransformerConfig(20, 20, d_model=16, n_layers=1, n_heads=2, d_ff=24, dropout=dropout)).double()


def batches():
    """Sentences of 1 to 9 tokens; every fifth batch is a single pair, every seventh goes beyond 256 positions."""
    usual = iter(TokenBatches(copy_task(90, 20, 1, 9), max_tokens=70))
    for i, batch in enumerate(usual):
        if i % 5 == 4:
            batch = make_batch(copy_task(1, 20, 6, 6, seed=i))
        if i % 7 == 6:
            batch = make_batch([*copy_task(9, 20, 2, 3, seed=i), *copy_task(1, 20, 280, 280, seed=i)])
        yield batch


def sentences():
    return [make_batch(copy_task(1, 20, n, n, seed=n)) for n in (3, 9, 5, 300, 4)]


def evaluate(model):
    scored = gather_from_ranks([perplexity_alone(model, batch) for batch in share_over_ranks(sentences())])
    return {"perplexity": perplexity(model, sentences()), **{f"sentence {i}": x for i, x in enumerate(scored)}}


def perplexity_alone(model, batch):
    with torch.inference_mode():
        return training.LabelSmoothingLoss(0.0).nll(model(batch.src, batch.tgt_in), batch.tgt_out).item()


def run(folder=None, model=None, steps=20, evaluate=evaluate, resume=True, **options):
    """Train. Returns the model, the records, and the pairs of every part that this process saw."""
    model = model or make_model()
    seen = []
    handle = model.register_forward_pre_hook(
        lambda module, inputs: seen.append(inputs[0].tolist()) if module.training else None
    )
    options = {"warmup_steps": 9, "log_every": 3, "evaluate_every": 10, "checkpoint_every": 5, "keep": 2, **options}
    config = TrainingConfig(steps=steps, device="cpu", progress=False, **options)
    try:
        return model, train(model, batches(), config, evaluate, folder, resume), seen
    finally:
        handle.remove()


def at_forward(number, action, model):
    calls = []

    def hook(module, inputs, output):
        calls.append(1)
        return action(output) if len(calls) == number and module.training else output

    model.decoder.register_forward_hook(hook)
    return model


def raised(function):
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    except Stopped as error:
        return f"Stopped: {error}"
    return "nothing"


def main(folder, everything):
    folder = Path(folder)
    join_processes()
    saves = []
    save = training.save_training_checkpoint
    training.save_training_checkpoint = lambda *args, **about: saves.append(args[1]) or save(*args, **about)
    said = {}

    # Each process begins with weights of its own; those of the first one count.
    model, records, said["seen"] = run(folder / "run", make_model(seed=rank()))
    said["saves"] = [*saves]
    said["records"] = [dataclasses.asdict(record) for record in records]
    safetensors.torch.save_file(model.state_dict(), folder / f"weights-{rank()}.safetensors")
    if everything:
        model, _, said["seen in parts"] = run(accumulate=3)
        safetensors.torch.save_file(model.state_dict(), folder / f"in-parts-{rank()}.safetensors")
        model = make_model(dropout=0.3)
        said["seeds"] = []  # of the random numbers
        model.encoder.register_forward_pre_hook(lambda *_: said["seeds"].append(torch.initial_seed()))
        run(model=model, precision="bfloat16", evaluate=None)
        safetensors.torch.save_file(model.state_dict(), folder / f"dropout-{rank()}.safetensors")

        # What happens to the second process alone.
        mine = rank() == 1
        poison = at_forward(7, lambda output: output * (float("nan") if mine else 1.0), make_model())
        said["nan"] = raised(lambda: run(folder / "nan", poison, evaluate=None))

        def stop(output):
            if mine:
                signal.raise_signal(signal.SIGTERM)
            return output

        # Saving takes a while. Who left before it is done would make torchrun end the one that saves.
        training.save_training_checkpoint = lambda *args, **about: time.sleep(0.3) or save(*args, **about)
        said["stopped"] = raised(lambda: run(folder / "stopped", at_forward(7, stop, make_model()), evaluate=None))
        said["saved"] = [path.name for path in list_checkpoints(folder / "stopped")]
        model, _, _ = run(folder / "stopped")
        safetensors.torch.save_file(model.state_dict(), folder / f"stopped-{rank()}.safetensors")

        def fail(model):
            raise RuntimeError("no score today")

        said["no score"] = [record.scores for record in run(evaluate=fail, steps=3)[1]]
        elsewhere = folder / "run" if mine else folder / "not there"
        said["elsewhere"] = raised(lambda: run(elsewhere))
    (folder / f"said-{rank()}.json").write_text(json.dumps(said))

    (folder / f"pid-{rank()}").write_text(str(os.getpid()))
    run(folder / "long", steps=100_000, evaluate=None, checkpoint_every=0)  # until somebody stops it
    leave_processes()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "everything")
'''


# ---- one process: parts ----


def make_model(**changes):
    torch.manual_seed(0)
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 24, "dropout": 0.0}
    return Transformer(TransformerConfig(20, 20, **{**sizes, **changes})).double()


def trained_in_parts(accumulate, batches, **options):
    model = make_model()
    config = TrainingConfig(
        steps=20, warmup_steps=9, log_every=3, accumulate=accumulate, device="cpu", progress=False, **options
    )
    return model, train(model, batches, config)


def close(one, other, tolerance=1e-8):
    assert one.keys() == other.keys()
    return all(torch.allclose(one[key], other[key], rtol=0, atol=tolerance) for key in one)


def close_records(one, other):
    """Equal but for rounding, time, and the padding that smaller parts save."""
    for left, right in zip(one, other, strict=True):
        left, right = (dict(record) for record in (left, right))
        for record in (left, right):
            del record["seconds"], record["flops"]
        scores = left.pop("scores"), right.pop("scores")
        assert left == pytest.approx(right, rel=1e-8) and scores[0] == pytest.approx(scores[1], rel=1e-8)
    return True


@pytest.mark.parametrize("clip_norm", [None, 0.05])
@pytest.mark.parametrize("accumulate", [2, 3, 7])
def test_parts_change_nothing(accumulate, clip_norm):
    """Sentences of one and of nine tokens, so that parts are uneven; every fifth batch has fewer pairs than parts."""
    usual = TokenBatches(copy_task(90, 20, 1, 9), max_tokens=70)
    batches = [batch for batch, _ in zip(usual, range(20))]
    batches[4::5] = [make_batch(copy_task(n, 20, 2, 6, seed=n)) for n in (1, 2, 3, 5)]
    whole, records = trained_in_parts(1, batches, clip_norm=clip_norm)
    parts, again = trained_in_parts(accumulate, batches, clip_norm=clip_norm)
    assert close(parts.state_dict(), whole.state_dict())
    assert not close(parts.state_dict(), make_model().state_dict(), 0.01), "it learned something"
    assert close_records(map(dataclasses.asdict, again), map(dataclasses.asdict, records))
    assert sum(record.flops for record in again) < sum(record.flops for record in records), "less padding"


def test_one_process_needs_no_others():
    assert (rank(), world_size()) == (0, 1)
    assert share_over_ranks([3, 1, 2]) == [3, 1, 2] == gather_from_ranks([3, 1, 2])


# ---- several processes ----


@dataclasses.dataclass
class Together:
    """What two processes did."""

    folder: object
    said: list
    exits: list
    errors: str

    def weights(self, name, number=0):
        return safetensors.torch.load_file(self.folder / f"{name}-{number}.safetensors")


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_for(condition, starters, seconds=300):
    end = time.monotonic() + seconds
    while time.monotonic() < end and all(starter.poll() is None for starter in starters):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("the processes ended early, or took too long")


def together(folder, root, commands, stop):
    """Run the program until it is in its endless training, stop that, and collect what there is."""
    loopback = "lo" if sys.platform == "linux" else "lo0"
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": loopback}
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    errors = (folder / "errors").open("w")
    starters = [
        subprocess.Popen([*torchrun, *command], stdout=errors, stderr=errors, env=environment, start_new_session=True)
        for command in commands
    ]
    pids = [folder / f"pid-{i}" for i in range(2)]
    log = folder / "long" / "log.jsonl"
    try:
        wait_for(lambda: log.exists() and log.stat().st_size, starters)
        os.kill(stop(starters, pids), signal.SIGTERM)
        exits = [starter.wait(120) for starter in starters]
    except BaseException:
        print((folder / "errors").read_text())
        raise
    finally:
        errors.close()
        for starter in starters:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(starter.pid, signal.SIGKILL)
            starter.wait()
        for path in pids:  # torchrun puts each into a session of its own
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
                os.kill(int(path.read_text()), signal.SIGKILL)
    said = [json.loads((folder / f"said-{i}.json").read_text()) for i in range(2)]
    return Together(folder, said, exits, (folder / "errors").read_text())


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("program") / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def alone(program):
    """The program as a module of this process."""
    spec = importlib.util.spec_from_file_location("alone", program)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def processes(program, root, tmp_path_factory):
    """Two processes on one machine; at the end the first one is asked to stop."""
    folder = tmp_path_factory.mktemp("processes")
    command = ["--standalone", "--nproc-per-node", "2", str(program), str(folder), "everything"]
    return together(folder, root, [command], lambda starters, pids: int(pids[0].read_text()))


@pytest.fixture(scope="module")
def machines(program, root, tmp_path_factory):
    """Two machines of one process each, both this one; at the end torchrun on the second is asked to stop."""
    folder = tmp_path_factory.mktemp("machines")
    where = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    commands = [[*where, "--node-rank", str(i), str(program), str(folder), "some"] for i in range(2)]
    return together(folder, root, commands, lambda starters, pids: starters[1].pid)


@pytest.fixture(scope="module")
def expected(alone):
    """One process that gets the same batches whole."""
    return alone.run()


@pytest.fixture(params=["processes", "machines"])
def both(request):
    return request.getfixturevalue(request.param)


several = pytest.mark.slow  # they share two starts of a few seconds each


@several
def test_two_processes_are_one(both, expected):
    model, records, _ = expected
    for number in range(2):
        assert close(both.weights("weights", number), model.state_dict())
        assert close_records(both.said[number]["records"], map(dataclasses.asdict, records))
    first, second = (both.weights("weights", number) for number in range(2))
    assert all(first[key].equal(second[key]) for key in first), "not a bit apart"


@several
def test_parts_of_parts(processes, expected, alone):
    for number in range(2):
        assert close(processes.weights("in-parts", number), expected[0].state_dict())
    flops = [record["flops"] for record in processes.said[0]["records"]]
    assert flops == [record.flops for record in alone.run(accumulate=2)[1]], "the same parts, by turns or side by side"


@several
@pytest.mark.parametrize(("name", "parts"), [("seen", 1), ("seen in parts", 3)])
def test_every_pair_is_seen_once(name, parts, processes, alone):
    for update, batch in enumerate(itertools.islice(alone.batches(), 20)):
        mine = [said[name][update * parts : (update + 1) * parts] for said in processes.said]
        rows = [[id for id in row if id] for some in mine for part in some for row in part]
        wanted = [[id for id in row if id] for row in batch.src.tolist()]
        blank = [[alone.make_model().config.eos_id]] * (len(rows) - len(wanted))
        assert sorted(rows) == sorted(wanted + blank), update


@several
def test_shares_are_even(processes):
    """With many short sentences no process has more than a few tokens to do beyond the other's."""
    shares = [[sum(map(len, part)) for part in said["seen"]] for said in processes.said]
    usual = [i for i in range(20) if i % 5 != 4 and i % 7 != 6]
    assert all(abs(shares[0][i] - shares[1][i]) <= 20 for i in usual), shares


@several
def test_five_sentences_are_five(both, alone, expected):
    model = expected[0]
    scores = both.said[0]["records"][-1]["scores"]
    one_by_one = [alone.perplexity_alone(model, batch) for batch in alone.sentences()]
    assert [scores[f"sentence {i}"] for i in range(5)] == pytest.approx(one_by_one)
    assert len(scores) == 6 and scores == both.said[1]["records"][-1]["scores"]
    assert scores["perplexity"] == pytest.approx(alone.perplexity(model, alone.sentences()))


@several
def test_dropout_and_half_precision(processes):
    """Twenty updates without a hang, and both processes have the same weights."""
    first, second = (processes.weights("dropout", number) for number in range(2))
    assert all(first[key].equal(second[key]) and first[key].isfinite().all() for key in first)
    seeds = [seed for said in processes.said for seed in said["seeds"]]
    assert len(seeds) == len(set(seeds)) == 40, "each process drops other units, and others in each update"


@several
def test_the_first_process_writes(both):
    assert both.said[0]["saves"] == [5, 10, 15, 20] and both.said[1]["saves"] == []
    assert [path.name for path in list_checkpoints(both.folder / "run")] == ["step-00000015", "step-00000020"]
    lines = (both.folder / "run" / "log.jsonl").read_bytes().splitlines()
    assert [json.loads(line) for line in lines] == both.said[0]["records"]


@several
def test_a_loss_that_is_not_finite_in_one_process(processes):
    for said in processes.said:
        assert re.match(r"FloatingPointError: the loss of update 7 is nan.*warm-up", said["nan"])
    assert [path.name for path in list_checkpoints(processes.folder / "nan")] == ["step-00000005"]


@several
def test_a_signal_to_one_process(processes, expected):
    for number, said in enumerate(processes.said):
        assert said["stopped"] == "Stopped: stopped after update 7, which is saved; resume to go on"
        assert said["saved"] == ["step-00000005", "step-00000007"], "in every process, when it stops"
        assert close(processes.weights("stopped", number), expected[0].state_dict()), "it went on"


@several
def test_an_evaluation_that_fails_everywhere(processes):
    assert [said["no score"] for said in processes.said] == [[{}], [{}]]
    assert "the evaluation after update 3 failed, and is left out: RuntimeError('no score today')" in processes.errors


@several
def test_a_folder_that_not_all_can_see(processes):
    for said in processes.said:
        assert re.match(r"ValueError: not all processes see one .*; put the run on a disk", said["elsewhere"])


@several
def test_stopped_from_outside(both):
    """By torchrun, or in one process of two: all end, with a checkpoint that can be loaded."""
    assert all(both.exits), "not as if it had been finished"
    (path,) = list_checkpoints(both.folder / "long")
    load_checkpoint(path)
    assert not list((both.folder / "long" / "checkpoints").glob(".*"))
    assert re.search(r"Stopped: stopped after update \d+, which is saved; resume", both.errors)


@several
def test_one_process_goes_on_where_two_stopped(processes, alone, tmp_path):
    """And the other way round is the same code."""
    step = int(list_checkpoints(processes.folder / "nan")[-1].name[-8:])
    model, _, _ = alone.run(processes.folder / "nan")
    assert step == 5 and close(model.state_dict(), alone.run()[0].state_dict())
