"""A strict reader of the part of a Dockerfile's language that this project's Dockerfile keeps to."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

# By instruction: the options that are understood.
KNOWN = {
    "ARG": (),
    "CMD": (),
    "COPY": ("chmod", "chown", "from"),
    "ENTRYPOINT": (),
    "ENV": (),
    "EXPOSE": (),
    "FROM": (),
    "LABEL": (),
    "RUN": (),
    "USER": (),
    "WORKDIR": (),
}
_DIRECTIVE = re.compile(r"#\s*(syntax|escape|check)\s*=", re.IGNORECASE)
_FROM = re.compile(r"(\S+)(?:\s+AS\s+(\S+))?", re.IGNORECASE)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


class DockerfileError(ValueError):
    """The file says something that is not understood here, and maybe not by a builder either."""


@dataclass(frozen=True)
class Instruction:
    """One instruction, with what follows its name and its options."""

    line: int
    name: str
    options: Mapping[str, str]
    value: str

    def words(self) -> list[str]:
        """Return its value as words: a JSON list, or as a shell would split it."""
        if not self.value.startswith("["):
            return shlex.split(self.value)
        try:
            words = json.loads(self.value)
        except json.JSONDecodeError as error:
            raise DockerfileError(f"line {self.line}: {self.value} is no list in JSON: {error}") from error
        return [str(word) for word in words]

    def pairs(self) -> dict[str, str]:
        """Return its value as NAME=VALUE."""
        pairs = dict(word.partition("=")[::2] for word in self.words())
        if not all(name and f"{name}=" in self.value for name in pairs):
            raise DockerfileError(f"line {self.line}: {self.name} takes NAME=VALUE, and this is {self.value}")
        return pairs


@dataclass(frozen=True)
class Stage:
    """What lies between two FROM."""

    name: str
    base: str
    instructions: list[Instruction] = field(default_factory=list)


def substituted(text: str, variables: Mapping[str, str], line: int) -> str:
    """Replace $NAME and ${NAME}, which must be known."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in variables:
            raise DockerfileError(f"line {line}: there is no variable {name}")
        return variables[name]

    return _VARIABLE.sub(value, text)


def read_instructions(text: str) -> list[Instruction]:
    """Read all instructions of a file."""
    instructions, begun, parts = [], 0, []
    for number, line in enumerate(text.splitlines(), 1):
        if _DIRECTIVE.match(line):
            raise DockerfileError(f"line {number}: directives of the parser are not understood")
        if line.lstrip().startswith("#") or (not line.strip() and not parts):
            continue
        if not line.strip():
            raise DockerfileError(f"line {number}: an empty line inside of an instruction")
        begun = begun if parts else number
        goes_on = line.rstrip().endswith("\\")
        parts.append(line.rstrip().removesuffix("\\").strip())
        if not goes_on:
            instructions.append(_instruction(begun, " ".join(parts)))
            parts = []
    if parts:
        raise DockerfileError(f"line {begun}: the last instruction has no end")
    return instructions


def _instruction(line: int, text: str) -> Instruction:
    name, _, rest = text.partition(" ")
    rest = rest.strip()
    if name not in KNOWN:
        raise DockerfileError(f"line {line}: {name} is not understood")
    if "<<" in rest:
        raise DockerfileError(f"line {line}: here-documents are not understood")
    options = {}
    while found := re.match(r"--([\w-]+)=(\S+)\s+", rest):
        if found[1] not in KNOWN[name]:
            raise DockerfileError(f"line {line}: {name} --{found[1]} is not understood")
        options[found[1]] = found[2]
        rest = rest[found.end() :]
    if not rest or rest.startswith("--"):
        raise DockerfileError(f"line {line}: {text} is not understood")
    return Instruction(line, name, options, rest)


def read_stages(text: str, arguments: Mapping[str, str] | None = None) -> dict[str, Stage]:
    """Read a file's stages by their names, with the build arguments that are used before the first FROM."""
    stages: dict[str, Stage] = {}
    variables: dict[str, str] = {}
    for instruction in read_instructions(text):
        if instruction.name == "FROM":
            value = substituted(instruction.value, variables, instruction.line)
            found = _FROM.fullmatch(value)
            if found is None or found[2] is None or found[2] in stages:
                raise DockerfileError(f"line {instruction.line}: FROM IMAGE AS NAME, each name once: {value}")
            stages[found[2]] = Stage(found[2], found[1])
        elif stages:
            stages[next(reversed(stages))].instructions.append(instruction)
        elif instruction.name == "ARG":
            variables |= {**instruction.pairs(), **(arguments or {})}
        else:
            raise DockerfileError(f"line {instruction.line}: {instruction.name} before FROM")
    return stages
