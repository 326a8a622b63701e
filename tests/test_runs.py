"""Section 5.2: a run on disk. Stopped, killed or out of space at any moment, it goes on as if nothing had been."""

import contextlib
import dataclasses
import functools
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import types

import pytest
import torch

import transformer.training as training
from transformer import Stopped, TrainingConfig, Transformer, TransformerConfig, load_checkpoint, perplexity, train
from transformer.checkpoints import CONFIG_FILE, STATE_FILE, WEIGHTS_FILE, list_checkpoints, read_tensors
from transformer.data import TokenBatches, copy_task, make_batch

STEPS = 11
OPTIONS = {"warmup_steps": 5, "log_every": 4, "evaluate_every": 3, "checkpoint_every": 5, "accumulate": 2}


def make_model(**changes):
    torch.manual_seed(0)
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 24, "dropout": 0.3}
    return Transformer(TransformerConfig(**{"src_vocab_size": 20, "tgt_vocab_size": 20, **sizes, **changes}))


def token_batches(**changes):
    """Seven batches an epoch, so that runs go into the second."""
    return TokenBatches(copy_task(60, 20, 2, 7), **{"max_tokens": 60, **changes})


def evaluate(model):
    """A real evaluation: it draws random numbers, and sees longer sentences than the training."""
    torch.rand(3)
    return {"perplexity": perplexity(model, [make_batch(copy_task(4, 20, 260, 270))])}


def begin(run=None, *, steps=STEPS, batches=None, model=None, evaluate=evaluate, resume=True, **options):
    """Train a model in this process. Returns it, and the records."""
    model = model or make_model()
    config = TrainingConfig(steps=steps, **{**OPTIONS, "device": "cpu", "progress": False, **options})
    return model, train(model, batches or token_batches(), config, evaluate, run, resume)


def at_update(step, action, model=None, accumulate=OPTIONS["accumulate"]):
    """A model that does something in the middle of the update that is the step-th of this process."""
    model = model or make_model()
    calls = []

    def count(module, inputs, output):
        if module.training:
            calls.append(1)
            if len(calls) == step * accumulate:
                action()

    model.encoder.register_forward_hook(count)
    return model


def stop(number=signal.SIGTERM):
    return functools.partial(signal.raise_signal, number)


def names(run):
    return [path.name for path in list_checkpoints(run)]


def steps_of(run):
    return [int(name.removeprefix("step-")) for name in names(run)]


def end(run):
    """Where a run stands: the weights and the optimizer's state of its newest checkpoint, and what it logged."""
    newest = list_checkpoints(run)[-1]
    records = [json.loads(line) for line in (run / "log.jsonl").read_bytes().splitlines()]
    return (
        int(newest.name.removeprefix("step-")),
        read_tensors(newest / WEIGHTS_FILE),
        read_tensors(newest / STATE_FILE),
        [{**record, "seconds": 0.0} for record in records],
    )


def same(one, other):
    """Equal bit for bit."""
    for left, right in zip(one, other, strict=True):
        if isinstance(left, dict):
            assert left.keys() == right.keys()
            assert all(left[key].equal(right[key]) and left[key].dtype == right[key].dtype for key in left)
        else:
            assert left == right
    return True


def all_whole(run):
    """Whether everything that is to be seen among the checkpoints can be loaded, and the newest gone on from."""
    found = list_checkpoints(run)
    for path in found:
        load_checkpoint(path)
    if found:
        assert any(key.startswith("exp_avg/") for key in read_tensors(found[-1] / STATE_FILE))
    return True


def without_time(records):
    return [dataclasses.replace(record, seconds=0.0) for record in records]


@pytest.fixture(autouse=True, scope="module")
def no_power_cuts():
    """Nothing here needs the disk itself, for which others may be waiting."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory):
    """The end of a run that nothing disturbed, and its records."""
    run = tmp_path_factory.mktemp("runs") / "never stopped"
    model, records = begin(run)
    assert all(parameter.equal(end(run)[1][name]) for name, parameter in model.named_parameters())
    assert len(list(run.iterdir())) == 2, "checkpoints and log"
    return end(run), without_time(records)


# ---- stopped and resumed ----


def test_a_run_on_disk_is_the_run_without(never_stopped):
    model, records = begin()
    (step, weights, _, logged), expected = never_stopped
    assert step == STEPS and all(value.equal(weights[name]) for name, value in model.state_dict().items())
    assert without_time(records) == expected and len(logged) == len(expected)
    assert [record.step for record in records] == [3, 4, 6, 8, 9, 11]


@pytest.mark.parametrize("step", range(1, STEPS))
def test_stopped_once_and_resumed(step, tmp_path, never_stopped):
    with pytest.raises(Stopped, match=f"after update {step}, which is saved; resume") as caught:
        begin(tmp_path, model=at_update(step, stop()))
    assert caught.value.step == step == steps_of(tmp_path)[-1]
    model, records = begin(tmp_path, model=make_model())
    assert same(end(tmp_path), never_stopped[0]) and without_time(records) == never_stopped[1]
    assert all(value.equal(never_stopped[0][1][name]) for name, value in model.state_dict().items())
    assert not model.training


@pytest.mark.parametrize("kind", ["a list", "a generator", "token batches"])
def test_stopped_after_every_update(kind, tmp_path, never_stopped):
    makers = {
        "a list": lambda: [batch for batch, _ in zip(token_batches(), range(STEPS))],
        "a generator": lambda: (batch for batch in token_batches()),
        "token batches": token_batches,
    }
    for step in range(1, STEPS):
        with pytest.raises(Stopped):
            begin(tmp_path, batches=makers[kind](), model=at_update(1, stop()))
        assert steps_of(tmp_path)[-1] == step
    begin(tmp_path, batches=makers[kind]())
    assert same(end(tmp_path), never_stopped[0])


def test_what_a_resumed_run_starts_with_does_not_count(tmp_path, never_stopped):
    """Neither the weights of the model it is given, nor random numbers drawn before."""
    with pytest.raises(Stopped):
        begin(tmp_path, model=at_update(5, stop()))
    model = make_model()
    for parameter in model.parameters():
        torch.nn.init.ones_(parameter)
    torch.rand(99)
    begin(tmp_path, model=model)
    assert same(end(tmp_path), never_stopped[0])


def test_other_ways_to_cut_and_save_are_no_other_run(tmp_path):
    """How much fits into memory, and how often something is saved, may change on the way."""
    whole, _ = begin(model=make_model(dropout=0.0).double())
    with pytest.raises(Stopped):
        begin(tmp_path, model=at_update(5, stop(), make_model(dropout=0.0).double()))
    model, _ = begin(tmp_path, model=make_model(dropout=0.0).double(), accumulate=5, checkpoint_every=1, keep=2)
    for left, right in zip(model.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-8)


def test_a_finished_run_returns_its_records_at_once(tmp_path, never_stopped):
    begin(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "checkpoints").rglob("*")}

    def never(model):
        raise AssertionError("there is nothing to evaluate")

    model, records = begin(tmp_path, batches=iter(never, None), evaluate=never)
    assert without_time(records) == never_stopped[1] and same(end(tmp_path), never_stopped[0])
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "checkpoints").rglob("*")} == before
    assert all(value.equal(never_stopped[0][1][name]) for name, value in model.state_dict().items())


def test_more_steps_go_on(tmp_path):
    longer, _ = begin(tmp_path / "long", steps=16)
    begin(tmp_path / "run")
    model, records = begin(tmp_path / "run", steps=16)
    for left, right in zip(end(tmp_path / "long")[1:3], end(tmp_path / "run")[1:3], strict=True):
        assert same([left], [right])
    assert [record.step for record in records] == [3, 4, 6, 8, 9, 11, 12, 15, 16]


def test_resume_where_there_is_nothing(tmp_path, never_stopped):
    begin(tmp_path / "not yet" / "there", resume=True)
    assert same(end(tmp_path / "not yet" / "there"), never_stopped[0])


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_resumes_bit_for_bit(precision, tmp_path, monkeypatch):
    """With a scale so large that the first updates of float16 are skipped, and that grows again."""
    scaler = functools.partial(torch.amp.GradScaler, init_scale=2.0**30, growth_interval=2)
    monkeypatch.setattr(training.torch.amp, "GradScaler", scaler)
    half = functools.partial(begin, precision=precision, evaluate=None, steps=24, accumulate=1)
    half(tmp_path / "whole")
    for _ in range(1, 24):
        with pytest.raises(Stopped):
            half(tmp_path / "run", model=at_update(1, stop(), accumulate=1))
    half(tmp_path / "run")
    assert same(end(tmp_path / "run"), end(tmp_path / "whole"))
    state = end(tmp_path / "run")[2]
    assert ("scaler/scale" in state) == (precision == "float16")
    if precision == "float16":
        assert state["scaler/scale"] < 2.0**30 and state["step/embedding.weight"] < 24, "some were skipped"


# ---- signals ----


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_stops(number, tmp_path):
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Stopped) as caught:
        begin(tmp_path, model=at_update(2, stop(number)))
    assert (caught.value.step, caught.value.number) == (2, number) and steps_of(tmp_path) == [2]
    assert isinstance(caught.value, KeyboardInterrupt), "what catches Ctrl-C catches it"
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_a_signal_while_it_evaluates(tmp_path):
    def long_evaluation(model):
        signal.raise_signal(signal.SIGINT)
        return {"score": 1.0}

    with pytest.raises(Stopped) as caught:
        begin(tmp_path, evaluate=long_evaluation)
    assert caught.value.step in (3, 4) and steps_of(tmp_path) == [caught.value.step]
    assert end(tmp_path)[3][0]["scores"] == {"score": 1.0}, "it was finished"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_acts_at_once(number, tmp_path, monkeypatch):
    class Mine(Exception):
        pass

    def handler(*_):
        raise Mine

    def twice():
        signal.raise_signal(number)
        signal.raise_signal(number)

    before = signal.signal(number, handler)
    try:
        with pytest.raises(Mine):
            begin(tmp_path, model=at_update(2, twice))
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)
    assert not names(tmp_path)


def test_a_signal_in_the_last_update_comes_too_late(tmp_path, never_stopped):
    begin(tmp_path, model=at_update(STEPS, stop()))
    assert same(end(tmp_path), never_stopped[0])


def test_without_a_folder_signals_do_what_they_do():
    with pytest.raises(KeyboardInterrupt) as caught:
        begin(model=at_update(2, stop(signal.SIGINT)))
    assert not isinstance(caught.value, Stopped)


def test_outside_the_main_thread_it_trains_all_the_same(tmp_path, never_stopped):
    thread = threading.Thread(target=begin, args=(tmp_path,))
    thread.start()
    thread.join()
    assert same(end(tmp_path), never_stopped[0])


# ---- what stays in the folder ----


@pytest.mark.parametrize("keep", [1, 2, 3, 9])
def test_the_newest_stay_and_the_newest_has_the_state(keep, tmp_path):
    begin(tmp_path, keep=keep, checkpoint_every=3)
    assert steps_of(tmp_path) == [3, 6, 9, 11][-keep:]
    with_state = [path.name for path in list_checkpoints(tmp_path) if (path / STATE_FILE).exists()]
    assert with_state == names(tmp_path)[-1:]
    assert all_whole(tmp_path)
    for path in (tmp_path / "checkpoints").iterdir():
        assert path.stat().st_mode & 0o777 == 0o755, "others may read it"


def test_the_clock_asks_for_checkpoints_too(tmp_path, monkeypatch):
    now = [0.0]

    def tick():
        now[0] += 25.0

    clock = types.SimpleNamespace(monotonic=lambda: now[0], perf_counter=training.time.perf_counter)
    monkeypatch.setattr(training, "time", clock)
    model = make_model()
    model.encoder.register_forward_hook(lambda *_: tick())
    begin(tmp_path, model=model, evaluate=None, checkpoint_every=0, checkpoint_minutes=2.0, accumulate=1, steps=12)
    assert steps_of(tmp_path) == [5, 10, 12]


def test_with_neither_count_nor_clock_the_end_is_saved(tmp_path):
    begin(tmp_path, checkpoint_every=0)
    assert steps_of(tmp_path) == [STEPS]


def test_what_a_killed_run_left_is_removed(tmp_path, never_stopped):
    with pytest.raises(Stopped):
        begin(tmp_path, model=at_update(5, stop()))
    for name in (".step-00000006.x7d2", ".step-00000001"):
        left = tmp_path / "checkpoints" / name
        left.mkdir()
        (left / WEIGHTS_FILE).write_bytes(b"half")
    begin(tmp_path)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == names(tmp_path)
    assert same(end(tmp_path), never_stopped[0])


@pytest.mark.parametrize("tail", [b'{"step": 6, "loss": 2.', b"{", b"\x00" * 50, b"\xff\xfe", b"\n\n"])
def test_half_a_line_in_the_log(tail, tmp_path, never_stopped):
    with pytest.raises(Stopped):
        begin(tmp_path, model=at_update(5, stop()))
    with (tmp_path / "log.jsonl").open("ab") as file:
        file.write(tail)
    begin(tmp_path)
    assert same(end(tmp_path), never_stopped[0])


def test_the_log_goes_back_to_the_checkpoint(tmp_path, never_stopped):
    """A run is killed long after its checkpoint: the records of the updates since are made again."""

    def crash():
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        begin(tmp_path, model=at_update(10, crash))
    assert [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_bytes().splitlines()] == [3, 4, 6, 8, 9]
    assert steps_of(tmp_path) == [5]
    begin(tmp_path)
    assert same(end(tmp_path), never_stopped[0])


def test_the_log_is_there_while_it_trains(tmp_path):
    seen = []

    def look(model):
        seen.append(len((tmp_path / "log.jsonl").read_bytes().splitlines()))
        return {}

    begin(tmp_path, evaluate=look)
    assert seen == [0, 2, 4, 5]


# ---- refused ----


def test_a_folder_with_a_run_is_not_overwritten(tmp_path, never_stopped):
    begin(tmp_path, resume=False)
    with pytest.raises(FileExistsError, match=r"holds a run, up to step-00000011; resume it, or give another folder"):
        begin(tmp_path, resume=False)
    assert same(end(tmp_path), never_stopped[0])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 1}, "seed=0, not 1"),
        ({"warmup_steps": 6}, "warmup_steps=5, not 6"),
        ({"label_smoothing": 0.2}, "label_smoothing=0.1, not 0.2"),
        ({"clip_norm": 1.0}, "clip_norm=None, not 1.0"),
    ],
)
def test_a_run_of_other_settings_is_refused(changes, said, tmp_path):
    with pytest.raises(Stopped):
        begin(tmp_path, model=at_update(5, stop()))
    before = end(tmp_path)
    with pytest.raises(ValueError, match=f"has {said}; resume it with that, or begin another"):
        begin(tmp_path, **changes)
    assert same(end(tmp_path), before)


def test_fewer_steps_than_were_done_change_nothing(tmp_path):
    begin(tmp_path)
    before = end(tmp_path)
    begin(tmp_path, steps=STEPS - 1)
    assert same(end(tmp_path), before)


@pytest.mark.parametrize("changes", [{"dropout": 0.1}, {"d_model": 32}, {"n_layers": 2}, {"norm_order": "pre"}])
def test_a_run_of_another_model_is_refused(changes, tmp_path):
    begin(tmp_path, steps=2)
    with pytest.raises(ValueError, match=r"step-00000002 is another model than this one; resume with the model of"):
        begin(tmp_path, model=make_model(**changes))


@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE, STATE_FILE])
def test_a_damaged_checkpoint_is_told(name, tmp_path):
    begin(tmp_path, steps=2)
    path = list_checkpoints(tmp_path)[-1] / name
    path.write_bytes(path.read_bytes()[:99])
    with pytest.raises(ValueError, match=rf"{name} is damaged"):
        begin(tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=name):
        begin(tmp_path)


@pytest.mark.parametrize("resume", [False, True])
def test_a_second_training_in_the_folder_is_refused(resume, tmp_path):
    """It is refused while the first one trains, and leaves checkpoints and log as they are."""
    seen = []

    def again(model):
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(BlockingIOError, match=r"a training is under way in .*checkpoints; wait for it"):
            begin(tmp_path, resume=resume, evaluate=None)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
        return seen.append(1) or evaluate(model)

    begin(tmp_path, evaluate=again)
    assert len(seen) == 4, "asked while it trained, at updates 3, 6, 9 and 11"
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000005", "step-00000010", "step-00000011"]
    assert begin(tmp_path, steps=STEPS + 1), "it has let go"


# ---- what is not finite ----


def test_a_loss_that_is_not_finite_leaves_the_last_checkpoint(tmp_path, never_stopped):
    model = make_model()
    calls = []

    def poison(module, inputs, output):
        calls.append(1)
        return output * float("nan") if len(calls) > 14 else output

    model.decoder.register_forward_hook(poison)
    with pytest.raises(FloatingPointError, match=r"loss of update 8 is nan.*warm-up.*clip_norm"):
        begin(tmp_path, model=model, evaluate=None)
    assert steps_of(tmp_path) == [5] and all_whole(tmp_path)
    begin(tmp_path)
    assert same(end(tmp_path)[:3], never_stopped[0][:3])


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    model = make_model()
    spoil = at_update(4, lambda: model.embedding.weight.register_hook(lambda grad: grad * float("inf")), model)
    with pytest.raises(FloatingPointError, match=r"update 4 made weights that are not finite.*clip_norm"):
        begin(tmp_path, model=spoil, checkpoint_every=1, evaluate=None)
    assert steps_of(tmp_path) == [1, 2, 3] and all_whole(tmp_path)


# ---- killed, and out of space, at every point and at any moment ----

# A server that has imported everything forks a process for every life of a run. It kills it after a while, or lets it
# meet its end at a point: the point-th call that changes something in the run's folder.
SERVER = """
import errno, json, os, resource, signal, sys, time

import torch

from transformer import TrainingConfig, Transformer, TransformerConfig, train
from transformer.data import TokenBatches, copy_task

torch.set_num_threads(1)
FULL = "No space left on device"


def life(folder, steps):
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(20, 20, d_model=16, n_layers=1, n_heads=2, d_ff=24, dropout=0.3))
    options = {"warmup_steps": 9, "log_every": 2, "checkpoint_every": 3, "accumulate": 2, "keep": 2}
    config = TrainingConfig(steps=steps, device="cpu", progress=False, **options)
    train(model, TokenBatches(copy_task(60, 20, 2, 7), max_tokens=60), config, None, folder, resume=True)


def meet(folder, way, point):
    seen = 0

    def reached(handle=None):
        nonlocal seen
        seen += 1
        if seen >= point if way == "full" else seen == point:
            if handle is not None and os.path.isfile(f"/proc/self/fd/{handle}"):
                log = os.readlink(f"/proc/self/fd/{handle}").endswith("/log.jsonl")
                size = os.fstat(handle).st_size  # what was not synced may be lost: half of a file, or a line's end
                os.ftruncate(handle, size - 20 if log else size // 2)
            if way == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(errno.ENOSPC, FULL)

    def watch(event, arguments):
        takes_room = ("open", "os.mkdir", "os.rename")
        frees_room = ("os.remove", "os.rmdir", "os.chmod")
        if event not in takes_room and (event not in frees_room or way == "full"):
            return
        if isinstance(arguments[0], int) or (event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        if os.fspath(arguments[0]).startswith(folder) or (event in frees_room and arguments[-1] != -1):
            reached()

    sys.addaudithook(watch)
    os.fsync = reached


def die_or_say(tell, folder, steps, way=None, point=0):
    if way == "slow":
        os.fsync = lambda handle: time.sleep(0.02)
    elif way == "short":
        resource.setrlimit(resource.RLIMIT_FSIZE, (point, resource.RLIM_INFINITY))
    elif way is not None:
        meet(folder, way, point)
    try:
        life(folder, steps)
    except OSError as error:
        os.write(tell, str(error).encode())
        return
    os.write(tell, b"finished")


os.fsync = lambda handle: None  # nobody cuts the power
life(None, 1)  # what is made once is made before the first fork
for line in sys.stdin:
    order = json.loads(line)
    after = order.pop("after", None)
    hear, tell = os.pipe()
    child = os.fork()
    if not child:
        try:
            die_or_say(tell, **order)
        finally:
            os._exit(1)
    os.close(tell)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    said = b""
    while block := os.read(hear, 4096):
        said += block
    os.close(hear)
    _, status = os.waitpid(child, 0)
    print(json.dumps("killed" if os.WIFSIGNALED(status) and said != b"finished" else said.decode()), flush=True)
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory, root):
    """A function: it lets a run in a folder live once, and returns how that ended: finished, killed, or an error."""
    program = tmp_path_factory.mktemp("server") / "server.py"
    program.write_text(SERVER, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    alarm = threading.Timer(300, os.killpg, (server.pid, signal.SIGKILL))
    alarm.start()

    def order(folder, steps, **options):
        server.stdin.write(json.dumps({"folder": str(folder), "steps": steps, **options}) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        assert answer, "the server died"
        return json.loads(answer)

    yield order
    alarm.cancel()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.communicate()


forks = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs Linux: fork, and /proc")


LONG = 100


@pytest.fixture(scope="module")
def whole(live, tmp_path_factory):
    """The end of the server's run that nothing disturbed."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    assert live(run, LONG) == "finished"
    return end(run)


def half_written(run):
    """Whether the run died in the middle of writing or removing something."""
    folder = run / "checkpoints"
    return any(run.glob(".*")) or (folder.is_dir() and any(folder.glob(".*")))


@forks
@pytest.mark.slow
def test_killed_at_random_moments(live, tmp_path, whole):
    """At least twenty times. Writing is slowed down, so that some kills fall into it."""
    begun = time.monotonic()
    assert live(tmp_path / "probe", 6, way="slow") == "finished"
    unit = time.monotonic() - begun  # so that a life lasts for some updates, on a slow machine too
    chance, runs, kills, inside = random.Random(0), [tmp_path / "run 0"], 0, 0
    while kills < 22:
        if live(runs[-1], LONG, way="slow", after=chance.uniform(0.0, 1.2 * unit)) == "killed":
            kills += 1
            inside += half_written(runs[-1])
            assert all_whole(runs[-1])
        else:
            runs.append(tmp_path / f"run {len(runs)}")
    reached = (len(runs) - 1) * LONG + max(steps_of(runs[-1]), default=0)
    print(f"{kills} kills, {inside} of them while it wrote, up to update {reached}")
    assert live(runs[-1], LONG) == "finished"
    assert all(same(end(run), whole) and not half_written(run) for run in runs)


@forks
@pytest.mark.slow
def test_killed_at_every_point_of_writing(live, tmp_path, whole):
    """Before each call that changes something in the folder; what was not synced loses half of its bytes."""
    run, inside = tmp_path / "run", 0
    for point in range(1, 46):  # from the log, through a whole checkpoint and the removal of old ones, into the next
        assert live(run, LONG, way="kill", point=point) == "killed"
        inside += half_written(run)
        assert all_whole(run)
    print(f"{point} kills, {inside} of them while it wrote, up to update {max(steps_of(run))}")
    assert inside > 20
    assert live(run, LONG) == "finished"
    assert same(end(run), whole) and not half_written(run)


@forks
@pytest.mark.slow
def test_out_of_space_at_every_point(live, tmp_path, whole):
    """From some call on, nothing that takes room succeeds any more."""
    run, last = tmp_path / "run", 0
    for point in range(1, 31):
        said = live(run, LONG, way="full", point=point)
        assert re.fullmatch(r"\[Errno 28\] No space left on device.*", said), said
        assert all_whole(run) and not half_written(run), "what could not be finished is removed"
        assert max(steps_of(run), default=0) >= last
        last = max(steps_of(run), default=0)
    print(f"{point} failures, up to update {last}")
    assert last > 0
    assert live(run, LONG) == "finished"
    assert same(end(run), whole)


@forks
@pytest.mark.slow
def test_files_that_cannot_be_written_to_the_end(live, tmp_path, whole):
    """The kernel takes the first bytes of a write and refuses the rest, in the log, the weights or the state."""
    run = tmp_path / "run"
    for limit in (0, 100, 300, 700, 1000, 5_000, 20_000, 30_000):
        said = live(run, LONG, way="short", point=limit)
        assert said.startswith("[Errno 27] File too large"), (limit, said)
        assert all_whole(run) and not half_written(run)
    assert live(run, LONG) == "finished"
    assert same(end(run), whole)
