"""`manyfit data`: index, count, verify, convert, etl."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from manyfit.cli.common import Verb, json_option, print_json
from manyfit.cli.output import say

COMPRESSIONS = click.Choice(["gzip", "zlib", "none"], case_sensitive=False)


@click.group()
def command() -> None:
    """Index, count, verify and convert files of records (TFRecord); prepare rows in shards (ETL)."""


def patterns_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument PATTERN…: files, quoted patterns, or folders."""
    return click.argument("patterns", nargs=-1, required=True, metavar="PATTERN...")(function)


@command.command("index", cls=Verb)
@patterns_argument
@click.option("--force", is_flag=True, help="Index all files again, also those that have changed.")
@click.option("--compression", type=COMPRESSIONS, help="Compression of the files; detected by default.")
@json_option
def index_command(patterns: tuple[str, ...], force: bool, compression: str | None, json_: bool) -> None:
    """Write _tfrecord_metadata.json to each folder: a description of its files.

    Files that are already indexed are compared with their index; a changed file is an error, unless --force
    is given. Files whose names begin with _ or . are not data. Other files without records, such as
    labels.txt, are skipped with a message, so '/folder/*' works, also repeatedly.

    \b
    manyfit data index 'data/*'
    """
    from manyfit.data.tfrecord import files, indexing, metadata, verification

    paths = files.match_files(patterns)
    known = (
        {folder: metadata.load_index(folder) for folder in verification.by_folder(paths)} if not force else {}
    )
    strange = verification.find_unindexed(paths, patterns, known)
    for path in strange:
        say(f"{path} is not a file of records; skipped", err=True)
    paths = [path for path in paths if path not in strange]
    if not paths:
        raise click.UsageError(f"no records found in: {', '.join(strange[:3])}")
    done: list[indexing.Indexed] = []
    given = None if compression is None else compression.lower().replace("none", "")
    with bar("indexing", sum(map(files.size_of, paths))) as moved:
        done += indexing.index_files(paths, force, given, moved)
    if json_:
        print_json([{"file": d.file, "records": d.entry.records, "new": d.is_new} for d in done])
        return
    for each in done:
        what = "indexed" if each.is_new else "unchanged"
        say(f"{what:9}  {each.entry.records:>10,} records  {each.file}")


@command.command("count", cls=Verb)
@patterns_argument
@click.option("--examples", is_flag=True, hidden=True)  # prints the sentence of `utils total-examples`
@json_option
def count_command(patterns: tuple[str, ...], examples: bool, json_: bool) -> None:
    """Print the number of records, according to the index."""
    from manyfit.data.tfrecord import indexing

    known = {path: entry.records for path, entry in indexing.find_entries(patterns).items()}
    if json_:
        print_json({"records": sum(known.values()), "files": known})
    elif examples:
        say(f"Total number of examples: {sum(known.values())}")
    else:
        say(f"{sum(known.values()):,} records in {len(known)} files")


@command.command("verify", cls=Verb)
@patterns_argument
@click.option("--deep", is_flag=True, help="Read all contents, not only names and sizes.")
@click.option("--deep-check", "deep", is_flag=True, hidden=True)
@click.option("--shallow-check", is_flag=True, hidden=True, expose_value=False)
@json_option
def verify_command(patterns: tuple[str, ...], deep: bool, json_: bool) -> None:
    """Compare files with their index. Print the differences, and exit with 1 if there are any."""
    from manyfit.data.tfrecord import files, verification

    size = sum(map(files.size_of, verification.present(patterns))) if deep else 0
    with bar("verifying", size) as moved:
        findings = list(verification.verify_files(patterns, deep, moved))
    if json_:
        print_json([{"file": f.file, "what": f.what, "detail": f.detail} for f in findings])
    else:
        for finding in findings:
            say(str(finding))
        if not findings:
            what = "match their index" if deep else "match their index in name and size"
            say(f"{len(verification.list_indexed(patterns))} files {what}")
    if findings:
        click.get_current_context().exit(1)


@contextmanager
def bar(text: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal for long operations."""
    import sys

    if not sys.stderr.isatty() or total < 1 << 24:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(text, total=total)
        waiting = 0

        def moved(count: int) -> None:
            nonlocal waiting
            waiting += count
            if waiting > 1 << 20:
                progress.advance(task, waiting)
                waiting = 0

        yield moved


RECORDS_ONLY = (
    "kind", "prefix", "shards", "workers", "compression", "column", "vocabulary", "words", "min_count",
    "no_header", "names",
)  # fmt: skip
"""Options of `convert` that do not apply to HDF5 files."""


@command.command("convert", cls=Verb)
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--kind", type=click.Choice(["images", "csv", "text", "arrays", "hdf5"]), help="Kind of SOURCE."
)
@click.option("--prefix", default="train", show_default=True, help="Prefix of the file names: train, test …")
@click.option(
    "--shards", type=click.IntRange(1), metavar="N", help="Number of files; by default, one per 128 MB."
)
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Number of files written in parallel.")
@click.option("--compression", type=COMPRESSIONS, default="none", show_default=True)
@click.option("--column", metavar="NAME", help="Column of a CSV file that holds the text.")
@click.option(
    "--vocabulary",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with one word per line; by default, built from the text and written.",
)
@click.option(
    "--words", type=click.IntRange(1), metavar="N", help="Maximum number of words in the vocabulary."
)
@click.option(
    "--min-count", type=click.IntRange(1), metavar="N", help="Minimum number of occurrences of a word."
)
@click.option(
    "--no-header", is_flag=True, help="The first row of a CSV file is data; its columns are c0, c1 …"
)
@click.option("--names", metavar="A,B…", help="Column names of a CSV file without a header.")
@click.option("--size", type=click.IntRange(1), metavar="N", help="Scale images to N × N pixels (HDF5).")
@click.option("--channels", type=click.Choice(["1", "3", "4"]), default="3", help="Of images (HDF5).")
@click.option("--force", is_flag=True, help="Replace existing files.")
@json_option
def convert_command(
    source: Path,
    target: Path,
    kind: str | None,
    prefix: str,
    shards: int | None,
    workers: int | None,
    compression: str,
    column: str | None,
    vocabulary: Path | None,
    words: int | None,
    min_count: int | None,
    no_header: bool,
    names: str | None,
    size: int | None,
    channels: str,
    force: bool,
    json_: bool,
) -> None:
    """Convert SOURCE to TFRecord files in the folder TARGET, and index them; or images to one HDF5 file.

    SOURCE is a folder with one subfolder of images per class, a CSV file, a text file with one document per
    line, arrays (.npz, .npy) or an HDF5 file. At the end, the lines for a config are printed.

    \b
    manyfit data convert pictures data --shards 8
    manyfit data convert reviews.csv data --column text --words 20000
    manyfit data convert pictures pictures.h5 --size 64
    """
    import os

    from manyfit.data.tfrecord import convert as converting

    if is_archive(target):
        convert_images(source, target, size, int(channels), force, json_)
        return
    if target.is_file():
        raise click.UsageError(f"{target} is a file, but TFRecord files are written to a folder")
    if not prefix.isidentifier():
        raise click.UsageError(f"--prefix: {prefix!r} is not a name such as train")
    called = [name.strip() for name in names.split(",")] if names is not None else [] if no_header else None
    table = converting.table_of(source, kind, column, vocabulary, words, target, min_count, called)
    packed = compression.lower().replace("none", "")
    count = workers or os.cpu_count() or 1
    made = []
    with steps("converting") as moved:
        for each in converting.write_shards(table, target, prefix, shards, packed, count, force):
            made.append(each)
            moved(f"{sum(m.records for m in made):,} of {len(table):,} rows")
    if json_:
        print_json({"files": {m.file: m.records for m in made}, "features": table.features()})
        return
    for each in made:
        say(f"{each.records:>10,} records  {target / each.file}")
    if table.classes:
        from manyfit.core.names import listing

        say(f"{len(table.classes):>10,} classes  {listing(table.classes)}")
    say(f"\nTo read them:\n\nfile_patterns: {target}/{prefix}-*\n{converting.as_yaml(table.features())}")


def is_archive(target: Path) -> bool:
    """Return whether `convert` writes an HDF5 file; options that do not apply are refused."""
    found, here = target.suffix.lower() in (".h5", ".hdf5"), click.get_current_context()
    for name in RECORDS_ONLY if found else ("size", "channels"):
        if here.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            what = "TFRecord files" if found else "an HDF5 file (TARGET.h5)"
            raise click.UsageError(f"--{name.replace('_', '-')} is for {what} only")
    return found


def convert_images(
    source: Path, target: Path, size: int | None, channels: int, force: bool, json_: bool
) -> None:
    """Convert a folder of images to an HDF5 file."""
    from manyfit.data.files.image_archive import write_image_archive

    with steps("converting") as moved:
        found = write_image_archive(source, target, size, channels, force, moved)
    if json_:
        print_json({"file": str(target), "images": found})
        return
    for name, count in found.items():
        say(f"{count:>10,} images  {target}{'' if name == 'all' else f':{name}'}")
    columns = "inputs: image, target: target, id: id, batch_size: 32"
    say(f"\nTo read them:\n\ndata: {{class: manyfit.data.Hdf5, file: {target}, {columns}}}")


@contextmanager
def steps(text: str) -> Iterator[Callable[[str], None]]:
    """Show the progress so far on a terminal."""
    import sys

    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as status:
        yield lambda done: status.update(f"{text}: {done}")


@command.command("etl", cls=Verb)
@click.argument("spec", metavar="CLASS")
@click.option("--train-main", help="CSV file of the training rows; likewise for val, test and predict.")
@click.option("--train-dir", default="", help="Folder of the object files that its rows name.")
@click.option("--val-main", hidden=True)
@click.option("--val-dir", default="", hidden=True)
@click.option("--test-main", hidden=True)
@click.option("--test-dir", default="", hidden=True)
@click.option("--predict-main", hidden=True)
@click.option("--predict-dir", default="", hidden=True)
@click.option("--misc", multiple=True, help="A further file for read_misc; may be repeated.")
@click.option("--etl-dir", default="etl", show_default=True, help="Where prepared rows are kept.")
@click.option("--src", default="src", show_default=True, help="The folder of your code.")
@click.option("--fraction", default=1.0, show_default=True, help="The share of the rows to use.")
@click.option("--seed", default=0, show_default=True)
@click.option("--shards", default=2, show_default=True, type=click.IntRange(1))
@click.option("--capacity", "capacities", multiple=True, type=float, help="Relative size of each shard.")
@click.option("--workers", type=click.IntRange(1), help="Number of processes; by default, one per core.")
@click.option(
    "--on", type=click.Choice(["processes", "ray"]), default="processes", show_default=True,
    help="Where rows are prepared: on this machine, or on the nodes of a Ray cluster.",
)  # fmt: skip
@click.option("--address", help="The Ray cluster; by default RAY_ADDRESS, or else a local one.")
@click.option(
    "--on-error", type=click.Choice(["stop", "skip", "quarantine"]), default="stop", show_default=True
)
@click.option("--dry-run", is_flag=True, help="Check the spec on the first row of each table, and stop.")
@json_option
def etl_command(spec: str, on: str, address: str | None, dry_run: bool, json_: bool, **given: Any) -> None:
    """Prepare rows with the ETL spec CLASS and write them in shards.

    Rows that were already prepared with the same spec, files and options are reused; an interrupted command
    continues. In a config, the result is data: {class: manyfit.spec.EtlData, etl_dir: etl}.

    \b
    manyfit data etl specs.Images --train-main train.csv --train-dir images --val-main val.csv --shards 4
    """
    import sys

    from manyfit.data.etl.command import check_from_files, prepare_from_files

    if dry_run:
        lines = check_from_files(spec, given)
        print_json({"checked": lines}) if json_ else say("\n".join(lines))
        return
    pool = None
    if on == "ray":
        from manyfit.study.executors.ray_etl import ray_pool

        pool = ray_pool(Path(given["src"]), given["workers"], address)
    elif address:
        raise click.UsageError("--address is for --on ray only")
    found = prepare_from_files(spec, given, None if json_ else sys.stderr, pool)
    if json_:
        print_json({"folder": str(found.folder), "rows": found.rows, "failed": found.failed})
        return
    for line in found.proof:
        say(line)
    say(f"{'reused' if found.is_reused else 'wrote'} {found.folder}")
