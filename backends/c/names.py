"""Unique identifiers in one scope of the C file."""

import re

from tcc.backends.artifact.identifiers import transliterated

# Keywords of C23 and C++23, because both may read the header, and names that included headers
# define.
_TAKEN = frozenset(
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t "
    "char32_t class co_await co_return co_yield compl concept const const_cast consteval constexpr "
    "constinit continue decltype default delete do double dynamic_cast else enum explicit export "
    "extern false float for friend goto if inline int long mutable namespace new noexcept not "
    "not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires "
    "restrict return short signed sizeof static static_assert static_cast struct switch template "
    "this thread_local throw true try typedef typeid typename typeof typeof_unqual union unsigned "
    "using virtual void volatile wchar_t while xor xor_eq "
    "HUGE_VAL HUGE_VALF HUGE_VALL INFINITY NAN NULL linux math_errhandling unix".split()
)
# Patterns of the names that the headers, tcc itself, and the run function use.
_PATTERN = re.compile(
    r"\w+_t|(U?INT\w*|FP|M|MATH|PTRDIFF|SIG_ATOMIC|SIZE|WCHAR|WINT)_\w+|mem(cpy|move|set)|tcc_\w+|"
    r"r\d+|(inputs|outputs)(_\d+)?|call|ints|pool|results"
)


class CNames:
    """Generates C identifiers that are unique and not `reserved`."""

    def __init__(self, reserved: frozenset[str] = frozenset()) -> None:
        self._taken = set(_TAKEN | reserved)

    def fresh(self, stem: str) -> str:
        """Returns `stem` as a C identifier, followed by a number if it is in use."""
        base = re.sub("_+", "_", transliterated(stem)).strip("_") or "x"
        base = f"x{base}" if base[0].isdigit() or _PATTERN.fullmatch(base) else base
        joint = "_" if base[-1].isdigit() else ""
        name, count = base, 1
        while name in self._taken:
            count += 1
            name = f"{base}{joint}{count}"
        self._taken.add(name)
        return name
