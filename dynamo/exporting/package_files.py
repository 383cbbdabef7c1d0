"""A package as one file: a zip of its folder, for who copies or stores it.

In: a folder that `dynamo.package` has written, or the zip of one. Out: the other. Nothing is packed
closer: weights and machine code hardly shrink. The file is there whole, or not at all.
"""

from __future__ import annotations

import contextlib
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from dynamo.base.errors import LoadError
from dynamo.store.content import replacing

ENDING = ".zip"
DESCRIPTION = "model.json"


def check_place(path: Path) -> None:
    """Errors: FileExistsError where something else than the zip of a package is there."""
    if not path.exists():
        return
    with contextlib.suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as file:
        if DESCRIPTION in file.namelist():
            return
    raise FileExistsError(f"{path} is there, and is no zip of a package")


def zip_folder(folder: Path, path: Path) -> None:
    """Puts the files of a folder into the zip, in place of one that is there."""
    with replacing(path) as made:
        with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as file:
            for one in sorted(folder.iterdir()):
                file.write(one, one.name)
        made.chmod(0o644)


@contextlib.contextmanager
def unzipped(path: Path) -> Iterator[Path]:
    """A folder of this user's with the files, for the duration of the block: what is mapped into
    memory inside of it stays. Errors: LoadError where it is no whole zip of a package."""
    with tempfile.TemporaryDirectory(prefix="dynamo_package_") as name:
        try:
            with zipfile.ZipFile(path) as file:
                rows = file.infolist()
                if any(row.is_dir() or Path(row.filename).name != row.filename for row in rows):
                    raise LoadError(f"{path} is no zip of a package: it has folders.")
                file.extractall(name)
        except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
            raise LoadError(f"{path} is damaged, or no zip of a package ({error}).") from None
        except OSError as error:
            raise LoadError(f"{path} can't be unpacked into {name} ({error}).\n"
                            "  What to do: TMPDIR names another folder.") from None
        yield Path(name)
