"""Appendix A4: the command line."""

import argparse
import contextlib
import io
import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest
import torch
from bs4 import BeautifulSoup

import transformer
from transformer import Tokenizer, Transformer, TransformerConfig, Translator, embedded_corpus
from transformer.cli import main, make_parser


def command(*arguments):
    return [sys.executable, "-m", "transformer", *map(str, arguments)]


def run(*arguments, stdin=b"", **options):
    return subprocess.run(command(*arguments), input=stdin, capture_output=True, timeout=300, check=False, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random model that can be read in no time. It writes nonsense, but never nothing."""
    folder = tmp_path_factory.mktemp("model")
    lines = [text for pair in itertools.islice(embedded_corpus(), 300) for text in (pair.source, pair.target)]
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(400, 400, d_model=16, n_layers=1, n_heads=2, d_ff=24))
    Translator(model, Tokenizer.train(lines, 400)).save(folder)
    return folder


@pytest.fixture
def translate(folder, monkeypatch, capfdbinary):
    """`transformer translate` in this process: bytes in; exit code, lines out and messages back."""

    def translate(stdin, *options):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="ascii"))
        code = main(["translate", "--model", str(folder), "--device", "cpu", *options])
        out, err = capfdbinary.readouterr()
        assert out == b"" or out.endswith(b"\n")
        return code, out.decode("utf-8").split("\n")[:-1], err.decode("utf-8").splitlines()

    return translate


def expected(folder, lines, **options):
    translator = Translator.from_pretrained(folder, "cpu")
    return [text.replace("\n", " ") for text in translator.translate(lines, **options)]


# ---- help ----


def parse(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        make_parser().parse_args(list(arguments))
    out, err = capsys.readouterr()
    return caught.value.code, out, err


COMMANDS = ("prepare", "train", "average", "translate", "evaluate", "attention", "demo")


def test_help_for_all(capsys):
    code, out, err = parse(capsys, "--help")
    assert code == 0 and not err
    for name in (*COMMANDS, "--version"):
        assert name in out


@pytest.mark.parametrize("name", COMMANDS)
def test_help_teaches(capsys, name):
    code, text, err = parse(capsys, name, "--help")
    assert code == 0 and not err
    assert f"examples:\n  transformer {name}" in text and len(text.splitlines()) > 10
    assert max(map(len, text.splitlines())) <= 80 or "COLUMNS" in os.environ
    text = " ".join(text.split())
    (commands,) = (action for action in make_parser()._actions if isinstance(action.choices, dict))
    for action in commands.choices[name]._actions:
        assert action.help and (action.option_strings or [action.metavar or action.dest])[0] in text
        if action.default not in (None, False, argparse.SUPPRESS) and not isinstance(action.default, list):
            assert f"(default: {action.default})" in text, action.option_strings


def test_every_example_is_one(capsys):
    """What the help tells to type can be typed."""
    for name in COMMANDS:
        _, text, _ = parse(capsys, name, "--help")
        examples = [line.strip() for line in text.partition("examples:\n")[2].splitlines()]
        assert len(examples) >= 2
        for example in examples:
            words = shlex.split(re.split(r" [<>#] ?", example.partition("transformer ")[2])[0])
            assert make_parser().parse_args(words).command == name


def test_help_and_version_from_outside():
    done = run("--help")
    assert done.returncode == 0 and not done.stderr
    assert b"usage: transformer" in done.stdout and b"translate" in done.stdout


@pytest.mark.parametrize(("arguments", "code"), [(["--help"], 0), (["--version"], 0), ([], 2), (["translat"], 2)])
def test_the_list_of_commands_does_not_wait_for_torch(arguments, code):
    """Loading torch takes seconds."""
    script = f"""
import sys
from transformer.cli import main
try:
    main({arguments})
except SystemExit as end:
    print(end.code, *sorted({{"torch", "numpy", "sentencepiece"}} & sys.modules.keys()), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == str(code)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_by_itself_has_all_its_options(name):
    """The parser that knows the options of one command reads it as the one that knows all."""
    one, full = (
        next(action for action in parser._actions if isinstance(action.choices, dict)).choices
        for parser in (make_parser(name), make_parser())
    )
    assert one[name].format_help() == full[name].format_help() and list(one) == list(full)
    for other in set(COMMANDS) - {name}:
        assert [action.dest for action in one[other]._actions] == ["help"], "another command's options took their time"


@pytest.mark.parametrize("words", ["translate", "train --data d --run r", "prepare --corpus embedded --out o", "demo"])
@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("raise KeyboardInterrupt", 130, "interrupted"),
        ("raise MemoryError", 1, "there is not enough memory; "),
        ("raise ImportError('torch is broken')", 1, "torch is broken"),
    ],
)
def test_what_happens_while_torch_is_loaded(tmp_path, words, line, code, said):
    """Even then it is one line, and not a page of Python."""
    (tmp_path / "torch.py").write_text(line)
    done = run(*words.split(), env={**os.environ, "PYTHONPATH": str(tmp_path)}, cwd=tmp_path)
    assert done.returncode == code and done.stderr.decode().startswith(f"transformer {words.split()[0]}: {said}")
    assert done.stderr.count(b"\n") == 1


def test_version(capsys):
    assert parse(capsys, "--version") == (0, f"transformer {transformer.__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "COMMAND"),
        (["translat"], "invalid choice: 'translat'"),
        (["translate", "--no-such-option"], "unrecognized arguments"),
        (["translate", "file.txt"], "unrecognized arguments"),
        (["demo", "--steps", "0"], "'0' is not a positive whole number"),
        (["demo", "--steps", "-3"], "'-3' is not a positive whole number"),
        (["demo", "--steps", "many"], "'many' is not a positive whole number"),
        (["demo", "--steps", "1.5"], "'1.5' is not a positive whole number"),
        (["demo", "--steps", "9" * 5000], "is not a positive whole number"),
        (["demo", "--steps"], "expected one argument"),
        (["prepare", "--out", "x"], "give either --corpus, or --train"),
        (["prepare", "--corpus", "embedded"], "the following arguments are required: --out"),
        (["prepare", "--corpus", "embedded", "--train", "a", "b", "--out", "x"], "give either --corpus, or --train"),
        (["prepare", "--corpus", "embedded", "--dev", "a", "b", "--out", "x"], "give either --corpus, or --train"),
        (["prepare", "--train", "a", "--out", "x"], "expected 2 arguments"),
        (["train"], "give --data and --run"),
        (["train", "--data", "x"], "give --data and --run"),
        (["train", "--run", "x"], "give --data and --run"),
        (["train", "--seed", "-1", "--show"], "'-1' is not a positive whole number"),
        (["train", "--dropout", "much", "--show"], "invalid float value: 'much'"),
        (["average"], "the following arguments are required: --run"),
        (["evaluate"], "give either --data, or --source and --reference"),
        (["attention"], "the following arguments are required: sentence"),
        (["attention", "."], ". is a folder; give the sentence, too"),
        (["attention", "x", "y", "z"], "unrecognized arguments: z"),
        (["evaluate", "--source", "x"], "give either --data, or --source and --reference"),
        (["evaluate", "--data", "x", "--source", "x", "--reference", "x"], "give either --data, or --source"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_wrong_usage(capsys, arguments, said):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    code, (out, err) = caught.value.code, capsys.readouterr()
    assert code == 2 and not out and said in err and "usage:" in err


# ---- translate ----


def test_one_line_per_line(translate, folder):
    lines = ["The dog sleeps.", "", "  ", "The cat sees the old house.", "\t"]
    code, out, err = translate("\n".join(lines).encode() + b"\n")
    assert code == 0 and out == expected(folder, lines) and not err
    assert out[0] and out[3] and out[1] == out[2] == out[4] == ""


def test_more_lines_than_a_chunk(translate, folder):
    lines = ["" if n % 7 == 0 else "The dog." if n % 2 else f"The dog sees {n} houses." for n in range(1020)]
    code, out, err = translate("\n".join(lines).encode(), "--beam-size", "1")
    assert code == 0 and out == expected(folder, lines, beam_size=1) and not err


@pytest.mark.parametrize(
    ("stdin", "n"),
    [
        (b"", 0),
        (b"\n", 1),
        (b"\n\n", 2),
        (b"The dog.", 1),
        (b"The dog.\n", 1),
        (b"The dog.\n\n", 2),
        (b"\nThe dog.", 2),
    ],
)
def test_the_final_newline(translate, stdin, n):
    code, out, err = translate(stdin)
    assert code == 0 and len(out) == n and not err


def test_only_a_newline_ends_a_line(translate, folder):
    """U+0085 stands inside lines of a well-known test set; the others are where str.splitlines() would cut."""
    inside = [f"The dog{mark}sleeps." for mark in "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\r\x00"]
    inside.append("\x1b[31mThe dog\x1b[0m\x07")
    code, out, err = translate("\n".join(inside).encode())
    assert code == 0 and out == expected(folder, inside) and not err


def test_carriage_returns_and_a_byte_order_mark(translate, folder):
    plain = translate(b"The dog.\n\nThe cat.\n")
    assert translate(b"\xef\xbb\xbfThe dog.\r\n\r\nThe cat.\r\n") == plain
    inside = ["The dog.", "\ufeffThe cat."]  # only the very first is a mark
    assert translate("\n".join(inside).encode())[1] == expected(folder, inside)


@pytest.mark.parametrize("bad", [b"\xff", b"The d\xf6g.", b"\xed\xa0\x80", b"half \xe2\x80", b"\x80\x04\x95"])
def test_what_is_not_utf8_gives_an_empty_line_and_its_number(translate, bad):
    code, out, err = translate(b"The dog.\n" + bad + b"\nThe cat.\n")
    assert code == 1 and len(out) == 3
    assert out[0] and out[1] == "" and out[2]
    assert len(err) == 1 and re.fullmatch(
        r"transformer translate: line 2 is not text: .*UTF-8; mend its encoding\.", err[0]
    )


def test_what_is_too_long_gives_an_empty_line_and_its_number(translate):
    lines = ["The dog."] * 1010
    lines[1] = lines[1005] = "word " * 10_000
    code, out, err = translate("\n".join(lines).encode(), "--beam-size", "1")
    assert code == 1 and [i for i, line in enumerate(out, 1) if not line] == [2, 1006] and len(out) == 1010
    assert [line.partition(" has ")[0] for line in err] == [f"transformer translate: line {n}" for n in (2, 1006)]


def test_the_search_is_as_asked_for(translate, folder):
    lines = ["The dog sleeps.", "The cat sees the old house."]
    stdin = "\n".join(lines).encode()
    for options in ({}, {"beam_size": 1}, {"beam_size": 2, "alpha": 3.0}):
        words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        assert translate(stdin, *words) == (0, expected(folder, lines, **options), [])
    code, out, err = translate(stdin, "--batch-tokens", "5")
    assert code == 1 and out == ["", ""] and re.search(r"line 1 has \d+ tokens, more than 5; split it", err[0])


def test_the_best_few(translate, folder):
    lines = ["The dog sleeps.", "", "The cat sees the old house."]
    code, out, err = translate("\n".join([*lines, "\udcff"]).encode("utf-8", "surrogateescape"), "--n-best", "3")
    assert code == 1 and len(err) == 1 and "line 4 is not text" in err[0]
    rows = [line.split("\t") for line in out]
    found = Translator.from_pretrained(folder, "cpu").n_best(lines, 3)
    wanted = [[str(n), text.replace("\n", " ")] for n, best in enumerate(found, 1) for text, _ in best]
    assert [[number, text] for number, _, text in rows] == [*wanted, ["4", ""]]
    scores = [float(score) for number, score, _ in rows if number == "1"]
    assert scores == sorted(scores, reverse=True) and scores[0] < 0
    code, out, err = translate(b"The dog.", "--n-best", "5")
    assert code == 1 and not out and err == ["transformer translate: n_best is 5; it must be at most 4."]


def test_output_is_utf8_whatever_the_locale(folder):
    lines = ["Straße 👍", "The dog."]
    options = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0"}
    stdin = "\n".join(lines).encode() + b"\n\xff\n"
    done = run("translate", "--model", folder, "--device", "cpu", stdin=stdin, env={**os.environ, **options})
    assert done.returncode == 1 and b"Traceback" not in done.stderr and b"line 3 is not text" in done.stderr
    assert done.stdout.decode("utf-8").split("\n")[:2] == expected(folder, lines)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model", "no/such/folder"], "no/such/folder has no tokenizer.model; give a folder"),
        (["--device", "bogus"], "device 'bogus' is unknown; use"),
        (["--device", "cuda:99"], "device 'cuda:99' is not available"),
    ],
)
def test_what_is_not_there(translate, options, said):
    code, out, err = translate(b"The dog.\n", *options)
    assert code == 1 and not out
    assert len(err) == 1 and err[0].startswith("transformer translate: ") and re.search(said, err[0])


def test_the_device_is_heeded_with_the_shipped_model_too(monkeypatch, capfdbinary):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"The dog.\n")))
    assert main(["translate", "--device", "bogus"]) == 1
    assert b"device 'bogus' is unknown" in capfdbinary.readouterr().err


def test_the_shipped_model_is_the_default():
    pair = next(embedded_corpus("test", seed=5))
    done = run("translate", stdin=f"{pair.source}\n\n".encode())
    assert done.returncode == 0
    assert done.stdout.decode() == transformer.load_toy_translator().translate([pair.source])[0] + "\n\n"
    assert re.fullmatch(r"device \w+, chosen from .*\n", done.stderr.decode()), "which device, and nothing else"


@pytest.fixture
def started(folder):
    """A process of `transformer translate` that has written its first lines and waits for more."""
    code = "import signal, sys, transformer; signal.signal(signal.SIGINT, signal.default_int_handler); "  # if nohup
    arguments = [sys.executable, "-c", code + "sys.exit(transformer.main())", "translate", "--model", folder]
    arguments += ["--beam-size", "1"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*arguments, "--device", "cpu"], **pipes) as process:
        process.stdin.write(b"The dog sleeps.\n" * 1000)
        process.stdin.flush()
        assert process.stdout.readline()
        yield process
        process.kill()


def test_who_stops_reading_is_no_error(started):
    started.stdout.close()  # as `| head -1` does
    with contextlib.suppress(BrokenPipeError):
        started.stdin.write(b"The dog sleeps.\n" * 2000)
        started.stdin.close()
    assert started.stderr.read() == b"" and started.wait(60) == 141


def test_interrupted(started):
    time.sleep(0.2)  # let it write the other lines
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=60)
    assert err == b"transformer translate: interrupted\n" and started.returncode == 130


# ---- attention ----


@pytest.fixture
def attend(folder, tmp_path, capsys):
    """`transformer attention` in this process: arguments in; exit code, page, output and messages back."""

    def attend(*arguments, model=folder, out=tmp_path / "page.html"):
        code = main(["attention", str(model), *arguments, "--out", str(out), "--device", "cpu"])
        page = out.read_text(encoding="utf-8") if out.is_file() else None
        return code, page, *capsys.readouterr()

    return attend


def test_a_page_of_attention(attend, folder, tmp_path):
    """It is that of the model in the folder, for the sentence, and the model's own translation or the given one."""
    translator = Translator.from_pretrained(folder, "cpu")
    for options, target in (([], None), (["--target", "Der Hund schläft."], "Der Hund schläft.")):
        code, page, out, err = attend("The dog sees the house.", *options)
        seen = transformer.look_at(translator, "The dog sees the house.", target)
        tables = [table.select("tr > :first-child") for table in BeautifulSoup(page, "html.parser").select("table")]
        rows = [[cell.get_text() for cell in table[1:]] for table in tables]
        assert (code, err) == (0, "") and rows == [seen.source, seen.read, seen.written]
        about = f"{len(seen.source)} source tokens, {len(seen.written)} target tokens, 1 layers, 2 heads"
        assert out == f"{tmp_path / 'page.html'}: {about}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_attention_to_a_sentence_named_as_a_folder(attend, monkeypatch, tmp_path):
    (tmp_path / "dog").mkdir()
    monkeypatch.chdir(tmp_path)
    assert attend("dog")[0] == 0


def test_attention_of_the_shipped_model(tmp_path, capsys):
    assert main(["attention", "The dog sleeps.", "--out", str(tmp_path / "page.html"), "--device", "cpu"]) == 0
    assert ", 2 layers, 4 heads" in capsys.readouterr().out
    assert "<h1>The dog sleeps.</h1>" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "changes", "said"),
    [
        (["The dog."], {"model": "no/such/folder"}, "no/such/folder has no tokenizer.model; give a folder"),
        ([""], {}, "the source is empty; give a sentence"),
        (["The \udcff dog."], {}, "lone surrogate"),
        (["The dog."], {"out": "no/such/page.html"}, "no/such/page.html cannot be written; give --out a file"),
        (["The dog."], {"out": "."}, " cannot be written; give --out a file"),
    ],
)
def test_no_page_but_a_sentence(attend, tmp_path, arguments, changes, said):
    old = tmp_path / "page.html"
    old.write_text("an older page", encoding="utf-8")
    changes = {name: tmp_path / value if name == "out" else value for name, value in changes.items()}
    code, _, out, err = attend(*arguments, **changes)
    assert code == 1 and not out and len(err.splitlines()) == 1
    assert err.startswith("transformer attention: ") and said in err
    assert list(tmp_path.iterdir()) == [old] and old.read_text(encoding="utf-8") == "an older page"


@pytest.mark.parametrize("missing", ["altair", "vl_convert"])
def test_attention_names_the_library_it_lacks(attend, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)  # importing it fails
    code, page, out, err = attend("The dog.")
    assert (code, page, out) == (1, None, "") and len(err.splitlines()) == 1
    assert "needs altair and vl-convert-python" in err and "pip install altair vl-convert-python" in err


# ---- demo ----


def test_a_short_demo(capfd):
    assert main(["demo", "--steps", "20", "--device", "cpu"]) == 0
    out, err = capfd.readouterr()
    assert "learns to copy" in out and "after 20 updates" in out and re.search(r"\d+ of 200 unseen", out)
    assert out.count("given") == out.count("wrote") == 3
    assert not err, "no progress bar where standard error is no terminal"


def test_a_demo_on_no_device(capsys):
    assert main(["demo", "--steps", "1", "--device", "bogus"]) == 1
    assert capsys.readouterr().err.startswith("transformer demo: device 'bogus' is unknown")


@pytest.mark.slow
def test_the_whole_demo():
    begun = time.perf_counter()
    done = run("demo", "--steps", 500)
    seconds = time.perf_counter() - begun
    assert done.returncode == 0, done.stderr.decode()
    copied = re.search(rb"(\d+) of 200 unseen sequences copied exactly", done.stdout)
    assert int(copied[1]) >= 190
    assert seconds < 120  # a minute, and as much again where the other core is busy, too
