"""Read the text that a decoder is judged on: UTF-8 text, or token ids as arrays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import (
    ErrorCode,
    Hint,
    MissingError,
    Option,
    UsageError,
    first_line,
    nearest_files,
    refuse_pipe,
)
from ..core.installation import hint_for_extra
from ..core.untrusted_files import read_npz

if TYPE_CHECKING:
    from ..core.contract import Array

_ARRAYS = (".npy", ".npz")
_NAMES = ("input_ids", "ids", "tokens")  # of the array of an .npz with several
_MAX_BYTES = 1 << 22  # of text; only the first tokens are used
_RANKS = (1, 2)  # tokens, or rows of tokens


def check_text_exists(path: Path | None) -> None:
    """Check that there is a file, before anything is loaded that its tokens would be fed to.

    Raises:
        UsageError: there is none.
    """
    if path is not None and not path.is_file():
        near = nearest_files(path)
        raise _text_error(
            f"no such text: {path}",
            f"did you mean {near[0]}?" if near else "give a .txt, .npy or .npz file",
            ErrorCode.NOT_FOUND,
        )


def read_token_rows(path: Path, checkpoint: Path, most: int) -> list[list[int]]:
    """Return rows of token ids: one row for a text, which the checkpoint's tokenizer splits.

    Args:
        path: a UTF-8 text, or an .npy or .npz of integers: one row, or [rows, tokens].
        checkpoint: a folder with a tokenizer; not used for arrays.
        most: the largest id that the model takes.

    Raises:
        UsageError: the file cannot be read, holds no tokens or others than the model has, or the
            checkpoint has no tokenizer.
    """
    check_text_exists(path)
    refuse_pipe(path)
    rows = _read_arrays(path) if path.suffix in _ARRAYS else [_tokenize(path, checkpoint)]
    found = [row for row in rows if row]
    if sum(map(len, found)) <= len(found):
        raise _text_error(
            f"{path} has {sum(map(len, found))} tokens: nothing follows any of them",
            "give a text of some hundred words",
        )
    wrong = next((one for row in found for one in row if not 0 <= one <= most), None)
    if wrong is not None:
        raise _text_error(
            f"{path} has the token id {wrong}, and the model takes 0 to {most}",
            "give ids of this model's tokenizer",
        )
    return found


def _read_arrays(path: Path) -> list[list[int]]:
    import numpy as np

    try:
        if path.suffix == ".npz":
            arrays = read_npz(path)
        else:
            arrays = {"": np.load(path, allow_pickle=False)}
    except (OSError, ValueError, EOFError) as error:
        raise _text_error(
            f"{path} cannot be read: {first_line(error)}", "write it with numpy.save"
        ) from error
    array = _choose_array(arrays, path)
    if array.dtype.kind not in "iu" or array.ndim not in _RANKS:
        raise _text_error(
            f"{path} is {array.dtype} with {array.ndim} dims, not token ids",
            "give integers, one row or [rows, tokens]",
        )
    rows: list[list[int]] = np.atleast_2d(array).tolist()
    return rows


def _choose_array(arrays: dict[str, Array], path: Path) -> Array:
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    name = next((one for one in _NAMES if one in arrays), None)
    if name is None:
        raise _text_error(
            f"{path} has the arrays {', '.join(arrays) or '(none)'}",
            f"name the token ids {_NAMES[0]}",
        )
    return arrays[name]


def _tokenize(path: Path, checkpoint: Path) -> list[int]:
    """Split a text by the tokenizer of the checkpoint's folder; its code is never run."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(_MAX_BYTES)
        text = raw.decode("utf-8", errors="ignore" if len(raw) == _MAX_BYTES else "strict")
    except (OSError, UnicodeDecodeError) as error:
        raise _text_error(
            f"{path} is not UTF-8 text: {first_line(error)}", "give a .txt, .npy or .npz file"
        ) from error
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingError(
            "reading text requires transformers", hint=hint_for_extra("hf"), option="text"
        ) from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            checkpoint, local_files_only=True, trust_remote_code=False
        )
        ids: list[int] = tokenizer(text, verbose=False)["input_ids"]
    except Exception as error:  # tokenizers raise exceptions of many kinds
        has_files = any(checkpoint.glob("*token*"))
        why = f": {first_line(error)}" if has_files else ""  # else a list of guesses
        raise _text_error(
            f"{checkpoint} has no tokenizer that splits {path.name}{why}",
            Hint("give token ids: ", Option("text", "ids.npy")),
        ) from error
    return ids


def _text_error(
    message: str, hint: str | Hint, code: ErrorCode = ErrorCode.INVALID_VALUE
) -> UsageError:
    return UsageError(message, hint=hint, option="text", code=code)
