# Exported from notebooks/A3_checkpoints.py, Appendix A3; edit that file, not this one.
# sha256 of what follows: 9508c75b7c489a37
"""Checkpoints (Appendix A3)."""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from transformer.model import Transformer, TransformerConfig

__all__ = [
    "FORMAT",
    "CONFIG_FILE",
    "WEIGHTS_FILE",
    "STATE_FILE",
    "write_atomically",
    "save_checkpoint",
    "load_checkpoint",
    "read_tensors",
    "read_description",
    "save_training_checkpoint",
    "load_training_checkpoint",
    "hold_folder",
    "list_checkpoints",
    "average_checkpoints",
]


FORMAT = 1
CONFIG_FILE, WEIGHTS_FILE, STATE_FILE = "config.json", "model.safetensors", "state.safetensors"


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write a file so that it holds either all of the old content or all of the new, whatever happens.

    Args:
        path: The file; its folder must exist.
        content: What it shall hold.

    Raises:
        OSError: The disk is full, or the folder cannot be written; the old file is untouched.
    """
    path = Path(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException as error:
        if isinstance(error, OSError):
            error.filename = error.filename or str(path)  # a full disk does not say where
        Path(name).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut. Not every system can open a folder; those do without."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def save_checkpoint(directory: str | Path, model: Transformer, dtype: torch.dtype | None = None, **about: Any) -> None:
    """Write a model's configuration (JSON) and weights (safetensors) into a folder.

    Args:
        directory: Made if it does not exist.
        model: The model.
        dtype: Store the weights in this type, for instance torch.float16; None keeps their own.
        **about: What made the model, as JSON values: command, commit, scores.

    Raises:
        OSError: The folder cannot be written.
        TypeError: What is told about it is not JSON; nothing is written.
    """
    directory = Path(directory)
    weights = {name: value.to("cpu", dtype).contiguous() for name, value in model.state_dict().items()}
    description = {"format": FORMAT, "model": json.loads(model.config.to_json()), "about": about}
    text = json.dumps(description, indent=2, ensure_ascii=False) + "\n"
    directory.mkdir(parents=True, exist_ok=True)
    _write_tensors(directory / WEIGHTS_FILE, weights, description)
    write_atomically(directory / CONFIG_FILE, text.encode("utf-8", "backslashreplace"))


def _write_tensors(path: Path, tensors: Mapping[str, Tensor], description: dict[str, Any]) -> None:
    """Write a safetensors file with a mark, "sha256": the checksum of the tensors, and what they were made for."""
    mark = f"{_checksum(tensors)} {_made_for(description)}"
    # One entry, since safetensors writes several in any order, and equal models shall be equal files.
    write_atomically(path, safetensors.torch.save(dict(tensors), {"sha256": mark}))


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _made_for(description: dict[str, Any]) -> str:
    """The configuration's fingerprint, since shapes do not tell how many heads share them, and the update, if any."""
    model, about = json.dumps(description["model"], sort_keys=True), description.get("about")
    step = about.get("step") if isinstance(about, dict) else None
    return f"{hashlib.sha256(model.encode()).hexdigest()} {step}"


def _check_mark(path: Path, description: dict[str, Any]) -> None:
    """Refuse tensors that were written for another configuration, or at another update. Old files do not say which."""
    mark, made_for = _read_header(path)[1], _made_for(description)
    found = mark.get("config") or mark.get("sha256", "").partition(" ")[2]  # "config": before checksums
    if found and found not in (made_for, made_for.partition(" ")[0]):
        reason = f"{CONFIG_FILE} and {path.name} do not belong together: one has changed since they were written"
        raise ValueError(f"{path.parent}: {reason}; restore it.")


def load_checkpoint(directory: str | Path, device: torch.device | str = "cpu") -> Transformer:
    """Read a model that `save_checkpoint` wrote. Weights become float32; no code in the files is run.

    Args:
        directory: The folder.
        device: Where the model goes.

    Returns:
        The model, in evaluation mode.

    Raises:
        FileNotFoundError: The folder or one of its two files is missing.
        ValueError: A file is damaged, of another format, or of another configuration.
    """
    directory = Path(directory)
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (directory / name).is_file():
            raise FileNotFoundError(f"{directory} has no {name}; give a folder that save_checkpoint wrote.")
    description = read_description(directory)
    found = _read_header(directory / WEIGHTS_FILE)[0]
    try:
        config = TransformerConfig.from_json(json.dumps(description["model"]))
        expected = _shapes(config, at_most=len(found))
    except (ValueError, TypeError, RuntimeError) as error:  # RuntimeError: no tensor can be as large as that
        reason = str(error).partition("\n")[0][:300]
        raise ValueError(f"{directory / CONFIG_FILE} describes no model that fits the weights: {reason}") from error
    if found != expected:
        name = next(name for name in [*expected, *sorted(found)] if found.get(name) != expected.get(name))
        raise ValueError(
            f"{directory / WEIGHTS_FILE} does not fit {CONFIG_FILE}: {name} has shape {found.get(name)}, the "
            f"configuration asks for {expected.get(name)}; the two files come from different models."
        )
    weights = read_tensors(directory / WEIGHTS_FILE)
    if not all(value.is_floating_point() and value.float().isfinite().all() for value in weights.values()):
        raise ValueError(f"{directory / WEIGHTS_FILE} holds weights that are not finite numbers; the run diverged.")
    _check_mark(directory / WEIGHTS_FILE, description)
    model = Transformer(config)
    model.load_state_dict(weights)
    return model.to(device).eval()


def _shapes(config: TransformerConfig, at_most: int) -> dict[str, tuple[int, ...]]:
    """The shape of every weight, found without taking memory. Each layer has several, so at most so many layers."""
    if config.n_layers > at_most:
        raise ValueError(f"n_layers is {config.n_layers}, and there are {at_most} weights in all.")
    with torch.device("meta"):
        return {name: tuple(value.shape) for name, value in Transformer(config).state_dict().items()}


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, in the types they were written in.

    Args:
        path: The file.

    Returns:
        Name to tensor, on the CPU.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is damaged.
    """
    written = _read_header(path)[1].get("sha256", "").partition(" ")[0]
    try:
        tensors = safetensors.torch.load(Path(path).read_bytes())  # a copy: the file may change later
    except KeyError as error:
        raise ValueError(f"{path} holds numbers of type {error}, foreign to checkpoints; give another file.") from error
    if written and written != _checksum(tensors):  # older files have none
        raise ValueError(f"{path} is damaged: it holds other numbers than were written; copy it again.")
    return tensors


def _read_header(path: str | Path) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """The shapes and the metadata of a safetensors file, which is as long as they say. Takes no memory for the rest."""
    try:
        with safetensors.safe_open(path, framework="np") as file:  # "pt" would ask for address space of that size
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            return shapes, file.metadata() or {}
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is damaged or cut short ({error}); copy it again.") from error


def read_description(directory: str | Path) -> dict[str, Any]:
    """The content of a checkpoint's config.json: its "format", its "model" and what is known "about" it.

    Args:
        directory: The folder.

    Returns:
        The JSON object.

    Raises:
        FileNotFoundError: There is no config.json.
        ValueError: It is damaged, or of a format this version does not know.
    """
    path = Path(directory) / CONFIG_FILE
    try:
        if path.stat().st_size > 2**24:
            raise ValueError("larger than 16 MB")
        description = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); copy it again.") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT or "model" not in description:
        raise ValueError(f"{path} is not a checkpoint of format {FORMAT}; was it written by another version?")
    return description


def save_training_checkpoint(
    run: str | Path, step: int, model: Transformer, state: Mapping[str, Tensor], keep: int, **about: Any
) -> Path:
    """Write the checkpoint of an update, and remove what is no longer needed.

    Args:
        run: The run's folder.
        step: Number of the update; a checkpoint of it that is there already is left as it is.
        model: The model.
        state: What else it takes to go on from here, as tensors.
        keep: How many checkpoints stay, the newest; only the newest keeps its state.
        **about: What is to be known about it, as JSON values.

    Returns:
        The checkpoint's folder.

    Raises:
        OSError: The folder cannot be written; the earlier checkpoints are untouched.
    """
    folder = Path(run) / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(".*"):  # by a run that was killed while it wrote or removed
        shutil.rmtree(left, ignore_errors=True)
    target = folder / f"step-{step:08}"
    if not target.exists():
        unfinished = Path(tempfile.mkdtemp(dir=folder, prefix=f".{target.name}."))
        try:
            save_checkpoint(unfinished, model, step=step, **about)
            _write_tensors(unfinished / STATE_FILE, state, read_description(unfinished))
            unfinished.chmod(0o755)
            unfinished.rename(target)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        _sync_folder(folder)
    older = list_checkpoints(run)[:-1]
    for path in older:
        (path / STATE_FILE).unlink(missing_ok=True)
    for path in older[: max(0, len(older) + 1 - keep)]:
        shutil.rmtree(path.rename(path.with_name(f".{path.name}")))  # first out of sight: no half one is ever seen
    return target


def load_training_checkpoint(directory: str | Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Read the newest checkpoint of a run, to go on from.

    Args:
        directory: The checkpoint's folder.

    Returns:
        The model's weights and the state, as `save_training_checkpoint` was given them.

    Raises:
        FileNotFoundError: A file is missing; only the newest checkpoint has a state.
        ValueError: A file is damaged, or they are not of one update.
    """
    directory = Path(directory)
    description = read_description(directory)
    weights, state = (read_tensors(directory / name) for name in (WEIGHTS_FILE, STATE_FILE))
    for name in (WEIGHTS_FILE, STATE_FILE):
        _check_mark(directory / name, description)
    return weights, state


@contextlib.contextmanager
def hold_folder(folder: str | Path | None) -> Iterator[None]:
    """Within it, no other `hold_folder` gets the same folder, in this process or in another, where folders have locks.

    Args:
        folder: Made if it does not exist; None holds nothing.

    Raises:
        BlockingIOError: Somebody holds it.
    """
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
    if folder is None or not hasattr(os, "O_DIRECTORY"):  # Windows opens no folder
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        reason = f"a training is under way in {folder}; wait for it, or give another folder."
        raise BlockingIOError(error.errno, reason) from None
    except OSError:
        pass  # a disk that knows no locks
    try:
        yield
    finally:
        os.close(handle)


def list_checkpoints(run: str | Path) -> list[Path]:
    """The checkpoints of a run, the oldest first.

    Args:
        run: The run's folder.

    Returns:
        Their folders; none if there are none.
    """
    return sorted((Path(run) / "checkpoints").glob("step-*"))


def average_checkpoints(directories: Sequence[str | Path]) -> Transformer:
    """The model whose weights are the mean of several checkpoints' weights.

    Args:
        directories: Checkpoints of one model.

    Returns:
        The model, in evaluation mode, on the CPU.

    Raises:
        FileNotFoundError: A folder or file is missing.
        ValueError: There is no checkpoint, one is damaged, or they are of different models.

    Source: §6.1.
    """
    if not directories:
        raise ValueError("there is no checkpoint to average; give at least one.")
    model = load_checkpoint(directories[0])
    total = {name: value.double() for name, value in model.state_dict().items()}
    for directory in directories[1:]:
        other = load_checkpoint(directory)
        if other.config != model.config:
            raise ValueError(f"{directories[0]} and {directory} are different models; only one model can be averaged.")
        for name, value in other.state_dict().items():
            total[name] += value
    model.load_state_dict({name: value / len(directories) for name, value in total.items()})
    return model
