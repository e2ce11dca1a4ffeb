"""Does what a Dockerfile says, step by step, in copies of a Debian root: no container engine is needed."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import translate
from pathlib import Path, PurePosixPath

from container_roots import Container, copy_root, network_settings
from dockerfile import DockerfileError, Instruction, Stage, read_stages, substituted

from dist_classicrl.process.jobs import run_job

STEP_SECONDS = 300.0
START_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Image:
    """A root, and how programs run in it."""

    root: Path
    env: Mapping[str, str] = field(default_factory=lambda: {"PATH": START_PATH})
    user: str = "0:0"
    cwd: str = "/"
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[str, ...] = ()

    def container(self, **settings: object) -> Container:
        """Give a container of it, with what `Container` takes besides; `env` comes on top of its own."""
        env = {**self.env, **settings.pop("env", {})}
        return Container(
            **{"root": str(self.root), "user": self.user, "cwd": self.cwd, **settings, "env": env}
        )


class Builder:
    """Builds the stages of a Dockerfile.

    `base` is the root that stands for `base_name`, the image that the file begins with; `context` is what
    COPY copies from, and `folder` is where the roots of the stages lie.
    """

    def __init__(self, file: Path, context: Path, folder: Path, base_name: str, base: Path) -> None:
        self.stages = read_stages(file.read_text())
        self.seconds: dict[str, float] = {}
        self._context = Context(context, (context / ".dockerignore").read_text())
        self._folder = folder
        self._bases = {base_name: base}
        self._built: dict[str, Image] = {}

    def build(self, name: str) -> Image:
        """Build a stage, and before it those that it needs."""
        if name not in self._built:
            stage = self.stages[name]
            started = time.monotonic()
            self._built[name] = self._stage(stage, self._start(stage))
            self.seconds[name] = time.monotonic() - started
        return self._built[name]

    def _start(self, stage: Stage) -> Image:
        if stage.base in self.stages:
            image = self.build(stage.base)
        elif stage.base in self._bases:
            image = Image(self._bases[stage.base])
        else:
            raise DockerfileError(f"there is neither a stage nor an image {stage.base}")
        if not stage.instructions:
            return image
        return replace(image, root=copy_root(image.root, self._folder / stage.name))

    def _stage(self, stage: Stage, image: Image) -> Image:
        arguments: dict[str, str] = {}
        for instruction in stage.instructions:
            if instruction.name == "ARG":
                arguments |= instruction.pairs()
            else:
                image = self._step(image, instruction, arguments)
        return image

    def _step(self, image: Image, step: Instruction, arguments: Mapping[str, str]) -> Image:
        if step.name == "RUN":
            _run(image, step, arguments)
            return image
        value = substituted(step.value, {**arguments, **image.env}, step.line)
        step = replace(step, value=value)
        if step.name == "COPY":
            self._copy(image, step)
        elif step.name == "WORKDIR":
            image = replace(image, cwd=str(PurePosixPath(image.cwd, value)))
            _inside(image.root, image.cwd).mkdir(parents=True, exist_ok=True)
        elif step.name == "ENV":
            image = replace(image, env={**image.env, **step.pairs()})
        elif step.name == "LABEL":
            image = replace(image, labels={**image.labels, **step.pairs()})
        elif step.name == "USER":
            if not re.fullmatch(r"\d+:\d+", value):
                raise DockerfileError(f"line {step.line}: USER takes numbers here, as in 1000:1000")
            image = replace(image, user=value)
        elif step.name == "EXPOSE":
            image = replace(image, ports=(*image.ports, *step.words()))
        elif step.name == "ENTRYPOINT":
            image = replace(image, entrypoint=_program(step), cmd=())
        else:
            image = replace(image, cmd=_program(step))
        return image

    def _copy(self, image: Image, step: Instruction) -> None:
        *sources, target = step.words()
        where = _inside(image.root, str(PurePosixPath(image.cwd, target)))
        into_folder = target.endswith("/") or where.is_dir() or target == "."
        if len(sources) > 1 and not into_folder:
            raise DockerfileError(f"line {step.line}: several sources need a folder, as in {target}/")
        for source in sources:
            origin = (
                _inside(self.build(step.options["from"]).root, source)
                if "from" in step.options
                else self._context.find(source, step.line)
            )
            # A folder is not copied itself, but what is in it.
            to = where / origin.name if into_folder and not origin.is_dir() else where
            to.parent.mkdir(parents=True, exist_ok=True)
            if origin.is_dir():
                ignore = None if "from" in step.options else self._context.ignored_names
                shutil.copytree(origin, to, symlinks=True, ignore=ignore, dirs_exist_ok=True)
            else:
                shutil.copy2(origin, to)
            _own(to, step)


def _own(path: Path, step: Instruction) -> None:
    """Give what was copied to the owner and the mode that the step names; root has it by default."""
    owner = [int(number) for number in step.options.get("chown", "0:0").split(":")]
    for each in (path, *(path.rglob("*") if path.is_dir() else ())):
        os.chown(each, *owner, follow_symlinks=False)
        if "chmod" in step.options and not each.is_symlink():
            each.chmod(int(step.options["chmod"], 8))


def _program(step: Instruction) -> tuple[str, ...]:
    if not step.value.startswith("["):
        raise DockerfileError(f"line {step.line}: write {step.name} as a list, else it is no first process")
    return tuple(step.words())


def _inside(root: Path, path: str) -> Path:
    """Return where a path of a root lies on this machine, whatever its symbolic links say."""
    found = root
    for part in PurePosixPath(path).parts[1:]:
        found = found / part
        if found.is_symlink():
            link = os.readlink(found)
            found = _inside(root, str(PurePosixPath("/", found.parent.relative_to(root), link)))
    return found


def _run(image: Image, step: Instruction, arguments: Mapping[str, str]) -> None:
    env, mounts = network_settings()
    container = image.container(env={**arguments, **env}, mounts=mounts)
    job = run_job(container.command(["/bin/sh", "-c", step.value]), timeout=STEP_SECONDS)
    if job.returncode != 0:
        said = (
            f"RUN {step.value}\nended with {job.returncode} after {job.seconds:.0f} s:\n{job.output[-4000:]}"
        )
        raise RuntimeError(f"line {step.line}: {said}")


class Context:
    """The files that COPY sees: a folder without what its .dockerignore names."""

    def __init__(self, folder: Path, ignore: str) -> None:
        self.folder = folder
        lines = [line.strip() for line in ignore.splitlines()]
        rules = [(line.removeprefix("!"), line.startswith("!")) for line in lines if line and line[0] != "#"]
        self._rules = [(_pattern(text), keeps) for text, keeps in rules]

    def is_ignored(self, path: Path) -> bool:
        """Tell whether the last rule that fits a path, or a folder above it, leaves it out."""
        names = path.relative_to(self.folder).parts
        ignored = False
        for pattern, keeps in self._rules:
            if any(pattern.fullmatch("/".join(names[:end])) for end in range(1, len(names) + 1)):
                ignored = not keeps
        return ignored

    def find(self, source: str, line: int) -> Path:
        """Return the file or folder that COPY means."""
        path = self.folder / source
        if not path.exists() or self.is_ignored(path):
            raise DockerfileError(f"line {line}: there is no {source}, or .dockerignore leaves it out")
        return path

    def ignored_names(self, folder: str, names: list[str]) -> list[str]:
        """Say which names of a folder are not copied, as `shutil.copytree` asks."""
        return [name for name in names if self.is_ignored(Path(folder, name))]


def _pattern(text: str) -> re.Pattern[str]:
    """Return the expression of a rule: as for file names, and `**/` before it means any folder or none."""
    anywhere = text.startswith("**/")
    return re.compile(("(?:.*/)?" if anywhere else "") + translate(text.removeprefix("**/").strip("/")))
