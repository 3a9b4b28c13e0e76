"""Shared by all verbs: options, panels of the help, exit codes and errors."""

from __future__ import annotations

import difflib
import functools
import gc
import inspect
import io
import os
import re
import shlex
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional, TypeVar, final, get_type_hints

import typer
from typer.core import TyperCommand

from counterfoil.core.console import console, failure, info, output

if TYPE_CHECKING:
    from counterfoil.core.config import Config
    from counterfoil.data.corrections import Correction
    from counterfoil.data.dataset import ImageTextDataset
    from counterfoil.data.phrases import PhraseParser
    from counterfoil.negatives.store import NegativeStore
    from counterfoil.pipelines.pipeline import Recipe
    from counterfoil.pipelines.run import DataSource
    from counterfoil.recipes.catalogue import RecipeArgument
    from counterfoil.report.page import TableBlock

Command = TypeVar("Command", bound=Callable[..., None])
Record = TypeVar("Record")

# Panels of ``counterfoil --help``, in the order in which `counterfoil.cli` adds the verbs.
RECIPES, CONVERSION, RESEARCH = "Recipes", "Models and features", "Research"

_DATA = (
    "Data set: a folder, file, Hugging Face name, or `scenes`, rendered here; its settings after "
    "a colon, as `photos.csv:caption-column=title,images=pictures/`."
)
Data = Annotated[str | None, typer.Option(help=_DATA)]
DataSets = Annotated[list[str] | None, typer.Option(help=f"{_DATA} Repeatable.")]
DataName = Annotated[
    str, typer.Argument(help="Data set: a folder, a file, or a name as `--data` takes.")
]
CaptionColumn = Annotated[
    str | None, typer.Option(help="Column of the captions in a table; by default a usual name.")
]
ImageColumn = Annotated[
    str | None, typer.Option(help="Column of the images in a table; by default a usual name.")
]
NewFolder = Annotated[
    Path, typer.Option("--output", help="Folder to write; it must not exist yet.")
]
RunFolder = Annotated[
    Path | None, typer.Option("--output", help="Folder of the run; default `runs/RECIPE`.")
]
Page = Annotated[Path, typer.Option("--output", help="HTML page to write; it must not exist yet.")]
Numbers = Annotated[Path | None, typer.Option("--json", help="Write the numbers as JSON too.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Change a setting: stage.key=value; repeatable.")
]
Split = Annotated[str, typer.Option(help="Split of the data.")]
Minutes = Annotated[
    float | None, typer.Option(min=0.01, help="Stop after this time; `--resume` continues.")
]
Resume = Annotated[bool, typer.Option(help="Continue work that was stopped.")]


def _use_device(name: str | None) -> str | None:
    """Choose the device as the options are read, so that no verb has to."""
    if name is not None:
        from counterfoil.core import distributed

        distributed.use_device(name)
    return name


Device = Annotated[
    str | None,
    typer.Option(
        envvar="COUNTERFOIL_DEVICE",
        callback=_use_device,
        help="cpu, cuda or mps; default the GPU of this process if there is one, else the CPU.",
    ),
]
Smoke = Annotated[bool, typer.Option(help="At most 20 training steps a stage, to try it out.")]
OneModel = Annotated[
    str, typer.Argument(help="Model folder, HF name, or `vectors`; join with `+` for an ensemble.")
]
Models = Annotated[
    list[str], typer.Argument(help="Model folders or HF names; join with `+` for an ensemble.")
]
Phrases = Annotated[
    str,
    typer.Option(
        help="Phrase parser: rules, spacy, a .json file, or a txt_db of UNITER with scene graphs."
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of random draws.")]
Query = Annotated[
    list[str] | None, typer.Option(help="A caption or image id of the split; repeatable.")
]
Count = Annotated[int, typer.Option(min=1, help="Queries of each kind.")]
Rerank = Annotated[str | None, typer.Option(help="Model that re-ranks the first results.")]
Depth = Annotated[int | None, typer.Option(min=1, help="Results to re-rank; default 50.")]

STOPPED = 3  # exit code of a run that `--resume` can continue
INTERRUPTED = 130


def data_source(
    data: str | Sequence[str] | None,
    default: str | None = None,
    *,
    skip_unreadable: bool = False,
    **columns: str | None,
) -> DataSource:
    """The data set that a verb reads, as it is typed; `default` if the user names none."""
    from counterfoil.data.readers.settings import SEVERAL
    from counterfoil.pipelines.run import DataSource

    for each in data if isinstance(data, list) and len(data) > 1 else ():
        if SEVERAL in each and Path(each).exists():
            raise ValueError(f"{each}: {SEVERAL} stands between data sets; rename it")
    data = default if not data else data if isinstance(data, str) else SEVERAL.join(data)
    if data is None:
        raise ValueError(
            "no data set is given; add --data with a folder, a file or a Hugging Face name, "
            "as in --data my-photos/, or --data scenes for pictures and captions rendered here"
        )
    source = DataSource.of(data, skip_unreadable=skip_unreadable, **columns)
    if source.weight is not None:
        raise ValueError(f"{data} is one data set, and weights are of several; leave weight out")
    return source


def earlier_corrections(source: DataSource) -> tuple[Correction, ...]:
    """The corrections that are applied when the data are read."""
    if source.parts:
        raise ValueError(f"corrections are of one data set; name one of {source.data}")
    from counterfoil.data.corrections import corrections_beside, read_corrections

    file = source.corrections or corrections_beside(source.data)
    return () if file is None else read_corrections(Path(file))


def open_negatives(folder: Path, source: DataSource) -> tuple[NegativeStore, ImageTextDataset]:
    """Mined negatives with the split that they were mined from, which must be unchanged."""
    from counterfoil.negatives.store import MINED, NegativeStore

    dataset = source.split(MINED.read_manifest(folder).split)
    relation = dataset.relation
    return NegativeStore.open(folder, fingerprint=dataset.fingerprint, relation=relation), dataset


def record_settings(*keys: str) -> Any:
    """The option ``--set`` of a verb with a record of settings, whose keys its help names."""
    return typer.Option(
        "--set", help=f"Change a setting, as {keys[0]}=…; repeatable: {', '.join(keys)}."
    )


def with_settings(
    record: Record, settings: Sequence[str] | None, keys: Sequence[str], **unread: str
) -> Record:
    """A record, or a recorded call, with settings of a command line, ``key=value``.

    Args:
        record: with the defaults.
        settings: of ``--set``.
        keys: that may be set.
        unread: keys that have no effect here, and when they do, as "with --guide".

    Raises:
        ValueError: no such key, one without effect, or a value of another type.
    """
    from counterfoil.core.config import unknown_name
    from counterfoil.pipelines.overrides import changed_settings

    for setting in settings or ():
        key = setting.partition("=")[0].strip()
        if "=" in setting and key not in keys:
            raise ValueError(f"{setting!r}: {unknown_name(key, [*keys], 'a setting')}")
        if key in unread:
            raise ValueError(f"--set {key}=… is read only {unread[key]}; leave it out")
        record = changed_settings(record, setting)
    return record


def data_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a verb one option for each field of its dataclass parameters.

    Typer reads a function's signature, so the decorated function has a signature in which these
    parameters are replaced by their fields.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type] = {
        name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)
    }
    parameters = []
    for parameter in inspect.signature(command).parameters.values():
        options, types = [parameter], hints
        if parameter.name in groups:
            group = groups[parameter.name]
            options = list(inspect.signature(group).parameters.values())
            types = get_type_hints(group, include_extras=True)
        parameters += [
            # Keyword-only parameters may have defaults in any order.
            option.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=types[option.name])
            for option in options
        ]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def verb(
    app: typer.Typer,
    *examples: str,
    name: str | None = None,
    panel: str | None = None,
    cls: type[TyperCommand] | None = None,
) -> Callable[[Command], Command]:
    """Add a function to an application, as `data_options` describes it.

    Args:
        app: the application.
        examples: command lines to try, the last lines of the verb's help.
        name: of the verb; default the function's.
        panel: of the help.
        cls: class of the command, if not `VerbCommand`.
    """

    def add(command: Command) -> Command:
        kind = cls or VerbCommand
        added = app.command(name, cls=kind, rich_help_panel=panel, epilog=example(*examples))
        added(data_options(command))
        return command

    return add


class VerbCommand(TyperCommand):
    """A verb; one that takes one data set refuses two.

    Of other options the last value counts, as everywhere.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse a second ``--data`` where nothing would say that the first is not read."""
        given = Counter(self.make_parser(ctx).parse_args(args=list(args))[2])
        for option, times in given.items():
            if "--data" in option.opts and times > 1 and not option.multiple:
                raise ValueError(
                    f"--data is given {times} times, and {ctx.command_path} takes one data set; "
                    "name one, or several as one, A::B"
                )
        return super().parse_args(ctx, args)


@final
class RecipeCommand(VerbCommand):
    """A verb about a recipe: the arguments of the recipe that is named are options too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Find the recipe first, as its options are not known before."""
        name = self._recipe(args)
        if name is not None:
            from counterfoil.recipes.catalogue import recipe_arguments, recipe_function

            own = {option for parameter in self.params for option in parameter.opts}
            arguments = recipe_arguments(recipe_function(name))
            for argument in arguments:
                if argument.option in own:
                    raise ValueError(
                        f"the recipe {name} has an argument {argument.name!r}, and "
                        f"{ctx.command_path} an option {argument.option}; rename the argument"
                    )
            ctx.meta[RECIPE_OPTIONS] = _recipe_options(name, arguments)
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        """The verb's parameters, and the recipe's."""
        return [*super().get_params(ctx), *ctx.meta.get(RECIPE_OPTIONS, ())]

    def _recipe(self, args: Sequence[str]) -> str | None:
        """The first word that is no option and no option's value, unless it names no recipe."""
        flags = {"--help"}
        for parameter in self.params:
            if getattr(parameter, "is_flag", False):
                flags |= {*parameter.opts, *parameter.secondary_opts}
        words = iter(args)
        for word in words:
            if not word.startswith("-"):
                return None if word.endswith(".py") or word.startswith("sweeps/") else word
            if word not in flags and "=" not in word:
                next(words, None)
        return None


RECIPE_OPTIONS, RECIPE_ARGUMENTS = "counterfoil.options", "counterfoil.arguments"


def _recipe_options(recipe: str, arguments: Sequence[RecipeArgument]) -> list[Any]:
    """An option for each argument of a recipe; `find_recipe` checks the values."""

    def options(**_: object) -> None: ...

    parameters = []
    for argument in arguments:
        told = [argument.about]
        if argument.values:
            told.append(f"One of {', '.join(map(str, argument.values))}.")
        if not argument.required and argument.kind is not bool:
            told.append(f"Default {argument.default}.")
        option = typer.Option(
            argument.option,
            help=" ".join(filter(None, told)),
            expose_value=False,
            callback=_keep_argument,
            rich_help_panel=f"Options of the recipe {recipe}",
        )
        kind = bool if argument.kind is bool else str
        annotation = Annotated[Optional[kind], option]  # type: ignore[valid-type]  # noqa: UP045
        parameters.append(
            inspect.Parameter(
                argument.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
            )
        )
    options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app = typer.Typer(add_completion=False)
    app.command()(options)
    names = {argument.name for argument in arguments}
    return [made for made in typer.main.get_command(app).params if made.name in names]


def _keep_argument(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> None:
    """Keep a recipe's argument apart from what the verb's function takes."""
    if value is not None:
        context.meta.setdefault(RECIPE_ARGUMENTS, {})[parameter.name] = value


def named_recipe(context: typer.Context, name: str) -> Recipe:
    """The recipe that a verb of the class `RecipeCommand` names, with its options."""
    from counterfoil.recipes.catalogue import find_recipe

    return find_recipe(name, **context.meta.get(RECIPE_ARGUMENTS, {}))


def phrase_parser(phrases: str) -> Config[PhraseParser]:
    """The phrase parser: by rules, by spaCy, or read from a file."""
    from counterfoil.core.config import config, unknown_name
    from counterfoil.data.phrases import PhraseFile, RulePhraseParser, SpacyPhraseParser

    if phrases == "spacy":
        return config(SpacyPhraseParser)
    if phrases == "rules":
        return config(RulePhraseParser)
    if not phrases.endswith(".json") and not Path(phrases).is_dir():
        known = ["rules", "spacy", "a file that ends in .json", "a folder of a txt_db"]
        raise ValueError(unknown_name(phrases, known, "a phrase parser"))
    return config(PhraseFile, path=phrases)


def check_new_files(*paths: Path | None) -> None:
    """Refuse files that exist or cannot be written, before long work is done for them."""
    from counterfoil.core.io import ensure_writable_file

    for path in paths:
        if path is not None:
            ensure_writable_file(path)


def print_tables(tables: Iterable[TableBlock], protocol: str = "") -> None:
    """Print tables of a page, with the protocol below each."""
    from counterfoil.report.tables import TerminalTable

    for table in tables:
        console().print(TerminalTable(table, protocol))


def tell_model(folder: Path, source: DataSource) -> None:
    """Say where the model of a run is, and what may be done with it."""
    from counterfoil.model import MODEL

    if (folder / MODEL).is_dir():
        output(
            f"model: {folder / MODEL}; next: {command_line('index', folder, source.typed)}, or "
            f"{command_line('evaluate', folder, '--data', source.typed)}"
        )


def say_convergence(context: typer.Context, folder: Path, recipe: Recipe) -> None:
    """Say whether more steps may help each training, with the command to go on where more may."""
    from counterfoil.core import distributed
    from counterfoil.model import MODEL
    from counterfoil.pipelines.run import next_folder
    from counterfoil.saved import read_card

    if distributed.rank():
        return
    told = [
        (stage.name, found)
        for stage in recipe.stages
        if stage.kind == "train"
        and (found := read_card(folder / stage.name / MODEL).provenance.get("convergence"))
    ]
    told.sort(key=lambda each: each[1]["state"] != "converged")  # so that these come last
    starts: dict[str, object] = {}
    for name, found in told:
        if found["state"] != "converged":
            starts |= {f"{name}.start": folder / name, **_warmed_up(recipe, name)}
    said = "\n".join(f"{name}: {found['state']}: {found['why']}" for name, found in told)
    if not starts:
        if said:
            output(said)
        return
    after = str(next_folder(folder))
    typed = (setting for setting in context.params["settings"] or ())
    kept = [setting for setting in typed if setting.partition("=")[0].strip() not in starts]
    settings = (*kept, *(f"{key}={value}" for key, value in starts.items()))
    command = typed_command(
        context,
        without=("folder", "resume", "minutes", "settings"),
        more=(*chain.from_iterable(("--set", each) for each in settings), "--output", after),
    )
    output(f"{said}; this goes on from there:\n{command}")


def _warmed_up(recipe: Recipe, name: str) -> dict[str, int]:
    """Settings with which the loss of a training does not begin with its warm-up again."""
    from counterfoil.losses.schedules import SwitchAfter
    from counterfoil.pipelines.pipeline import Train
    from counterfoil.training.mined import Mined

    stage = recipe.stage(name)
    assert isinstance(stage, Train)
    mined = stage.source(Mined)
    if mined is not None and mined.arguments.get("negatives") is None:
        return {}  # its loss waits for the first lists
    terms = stage.objective.arguments["terms"]
    return {
        f"{name}.objective.{term}.steps": 0
        for term, (_, loss) in terms.items()
        if loss.make is SwitchAfter and loss.arguments["steps"]
    }


def check_new_folder(folder: Path, option: str = "--output") -> None:
    """Refuse a folder that exists or cannot be written, before long work is done for it."""
    from counterfoil.core.io import ensure_absent, ensure_writable_folder

    ensure_absent(folder, f"a new folder with {option}")
    ensure_writable_folder(folder)


@contextmanager
def resumable_work(
    folder: Path, work: str, *, resume: bool, minutes: float | None
) -> Iterator[Callable[[], float | None]]:
    """Check a new folder for work that may be stopped, and give the function of minutes left.

    When the work is stopped, the command exits with code `STOPPED`.

    Args:
        folder: to write.
        work: noun for the work, for the error message.
        resume: whether to continue earlier work.
        minutes: time limit; None for none.
    """
    from counterfoil.core import distributed
    from counterfoil.core.io import write_lock
    from counterfoil.core.resumable import partial_folder
    from counterfoil.pipelines.state import RunStopped

    started = time.monotonic()
    check_new_folder(folder)
    distributed.init()
    lock = folder.with_name(f".{folder.name}.lock")
    try:
        with distributed.on_rank_0(write_lock(lock, folder)):
            # under the lock: a folder that is being written is not one that was stopped
            if partial_folder(folder).exists() and not resume:
                raise ValueError(
                    f"{partial_folder(folder)} holds a {work} that was stopped; add --resume to "
                    "continue it, or delete it"
                )
            distributed.barrier()  # no process starts to write before all have checked the folder
            yield lambda: None if minutes is None else minutes - (time.monotonic() - started) / 60
    except RunStopped as stopped:
        info(f"stopped, {stopped}; add --resume to continue")
        raise typer.Exit(STOPPED) from None


@contextmanager
def loading() -> Iterator[None]:
    """Import libraries outside the reach of the garbage collector.

    It would visit their objects again and again while they are made, and once more when the process
    ends: 0.5 s of the 1.2 s of a process that imports PyTorch.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


def example(*lines: str) -> str:
    """Commands to try, as the last lines of a verb's help."""
    return "**Example**\n\n" + "\n\n".join(f"`{line}`" for line in lines)


# The command line: exit codes, and errors as one sentence.

_UsageError: type[Exception] = next(  # the parent of all complaints, which is in no public module
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)


@functools.cache
def _command(app: typer.Typer) -> Any:
    return typer.main.get_command(app)


def answer(app: typer.Typer, arguments: Sequence[str] | None) -> int:
    """Run a command line; print an error as one sentence.

    Our own bugs are raised; with ``COUNTERFOIL_TRACEBACK`` set, errors of the input are too.
    """
    command = _command(app)
    for stream in (sys.stdout, sys.stderr):  # typer's help has characters that ASCII lacks
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if arguments is None and threading.current_thread() is threading.main_thread():
        # what cleans up after an error does so after SIGTERM too; trainings handle it themselves
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))
    warnings.filterwarnings("ignore", "Corrupt EXIF data")  # such a block is ignored
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = command.main(words, prog_name="counterfoil", standalone_mode=False)
    except _UsageError as error:
        return _refuse(_usage(error))
    except (ValueError, OSError) as error:
        if os.environ.get("COUNTERFOIL_TRACEBACK"):
            raise
        from counterfoil.core.io import in_words

        return _refuse(in_words(error) if isinstance(error, OSError) else str(error))
    except RuntimeError as error:
        from counterfoil.core import distributed

        if not distributed.is_lost_process(error):
            raise
        _refuse(
            "another process of this run ended first, and its message says why; start all "
            "processes again, with --resume where the command has it"
        )
        code = STOPPED
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:  # some versions of typer turn the interrupt into this
        failure(f"counterfoil: interrupted; {_after_interrupt(command, words)}")
    return code if isinstance(code, int) else 0


def _after_interrupt(command: Any, words: Sequence[str]) -> str:
    """The advice after Ctrl-C: to resume the command, or to run it again from the start."""
    command = _called(command, words)
    if any("--resume" in parameter.opts for parameter in command.params):
        return "run the command again with --resume, which keeps what is finished"
    return "nothing is left half-written, run the command again"


def _called(command: Any, words: Sequence[str]) -> Any:
    """The verb that a command line calls."""
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    return command


def _usage(error: Exception) -> str:
    """Error message for a wrong command line, with the help to read; "" if help was shown."""
    message = str(getattr(error, "format_message", error.__str__)()).strip().rstrip(".")
    value = _refused_value(error)
    if value and value not in message:
        message = f"{message}, not {value}"
    context = getattr(error, "ctx", None)
    unknown = getattr(error, "option_name", None)
    if context is not None and isinstance(unknown, str) and hasattr(error, "possibilities"):
        message = f"there is no option {unknown}; {_instead(unknown, context)}"
    where = context.command_path if context is not None else "counterfoil"
    return f"{message}; `{where} --help` shows an example" if message else ""


def _instead(unknown: str, context: Any) -> str:
    """What to write instead of an option that does not exist."""
    from counterfoil.data.readers.settings import KEYS

    if (key := unknown.lstrip("-")) in KEYS:
        return f"it is said with the data, as in my-photos/:{key}=VALUE"
    parameters = context.command.get_params(context)
    key = key.replace("-", "_")
    told = next((each.help for each in parameters if "--set" in each.opts), "")
    if re.search(rf"\b{re.escape(key)}\b", told.partition(":")[2]):  # see `record_settings`
        return f"it is a setting: --set {key}=VALUE"
    options = (option for each in parameters for option in each.opts)
    known = sorted(option for option in options if option.startswith("--") and option != "--help")
    near = difflib.get_close_matches(unknown, known, 1, cutoff=0.7)
    return f"did you mean {near[0]}?" if near else f"{context.info_name} has {', '.join(known)}"


def _refused_value(error: Exception) -> str:
    """The value that typer's validation refused without naming it."""
    errors = getattr(error.__cause__ or error.__context__, "errors", None)
    details = errors() if callable(errors) else []
    return repr(details[0]["input"]) if details else ""


def _refuse(sentence: str) -> int:
    if sentence:
        failure(f"counterfoil: {' '.join(sentence.split())}")
    return 2


# Options without effect: refused in one sentence.


def refuse(context: typer.Context, names: Sequence[str], when: str) -> None:
    """Refuse options on the command line that are read only `when`, as in "with --data"."""
    typed = [
        option.opts[0]
        for option in context.command.params
        if option.name in names and _typed(context, option.name)
    ]
    if typed:
        *most, last = typed
        listed = f"{', '.join(most)} and {last}" if most else last
        are, them = ("are", "them") if most else ("is", "it")
        raise ValueError(f"{listed} {are} read only {when}; leave {them} out")


def refuse_without(
    context: typer.Context,
    name: str,
    names: Sequence[str],
    *,
    alone: bool = False,
    argument: bool = False,
) -> None:
    """Refuse options that have an effect only with another one, where that one is not given.

    Args:
        context: the verb's.
        name: the parameter that they need.
        names: parameters of the verb.
        alone: they need its absence: refuse them where it is given.
        argument: it is an argument, not an option.
    """
    if bool(context.params[name]) == alone:
        other = f"a {name}" if argument else f"--{name.replace('_', '-')}"
        refuse(context, names, f"{'without' if alone else 'with'} {other}")


imported: list[str] = []  # modules of ``--import``, which stands before or behind any verb


def command_line(*words: object) -> str:
    """A command for a shell: ``counterfoil``, what ``--import`` names, and these words."""
    modules = chain.from_iterable(("--import", name) for name in dict.fromkeys(imported))
    return shlex.join(["counterfoil", *modules, *map(str, words)])


def typed_command(
    context: typer.Context, *, without: Iterable[str] = (), more: Iterable[str] = ()
) -> str:
    """The command that was typed, for a shell.

    Args:
        context: the verb's.
        without: parameters to leave out.
        more: words to add at its end.
    """
    words = [str(context.info_name)]
    for parameter in context.command.params:
        name, value = str(parameter.name), context.params.get(str(parameter.name))
        if name in without or not _typed(context, name):
            continue
        option = parameter.opts[0] if parameter.param_type_name == "option" else ""
        if isinstance(value, bool):
            words.append(option if value else parameter.secondary_opts[0])
            continue
        for each in value if isinstance(value, list | tuple) else [value]:
            words += [option, str(each)] if option else [str(each)]
    for name, value in context.meta.get(RECIPE_ARGUMENTS, {}).items():
        option = f"--{name.replace('_', '-')}"
        words += [option] if value is True else [option, str(value)]
    return command_line(*words, *more)


def _typed(context: typer.Context, name: str | None) -> bool:
    source = context.get_parameter_source(name) if name else None
    return source is not None and source.name == "COMMANDLINE"
