"""One live line on stderr while a solver searches; silent unless stderr is a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from pipecut.commands.terminal import terminal as output
from pipecut.commands.terminal.terminal import Cleaned, console, stderr
from pipecut.formulation.limits import NEVER, Deadline

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

    from pipecut.formulation.outcome import Progress

REFRESHES_PER_SECOND = 4


class ProgressLine:
    """Best plan, bound, gap and seconds of a running search. ``report`` may be called from any thread."""

    def __init__(
        self, title: str, *, quiet: bool, say: Callable[[int], str] = output.duration, deadline: Deadline = NEVER
    ) -> None:
        self.title = title
        self._deadline = deadline
        self._say = say
        self.shown = not quiet and stderr() is not None and stderr().isatty()
        self._latest: Progress | None = None
        self._began = time.monotonic()
        self._live: Live | None = None

    def __enter__(self) -> ProgressLine:
        if self.shown:
            from rich.live import Live

            self._live = Live(
                console=console(stderr()),
                get_renderable=lambda: Cleaned(self._line()),
                refresh_per_second=REFRESHES_PER_SECOND,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def report(self, progress: Progress) -> None:
        """Take the latest best objective and bound."""
        self._latest = progress

    def rename(self, title: str) -> None:
        """Begin a new search on the same line."""
        self.title, self._latest, self._began = title, None, time.monotonic()

    def tell(self, text: str) -> None:
        """Write a line that stays: above the progress line, or to stderr where there is none."""
        if self._live is None:
            output.remark(text)
            return
        from rich.text import Text

        self._live.console.print(Cleaned(Text(text)), soft_wrap=True)

    def stopping(self) -> None:
        """Say that the search was asked to stop."""
        self.title = f"{self.title}: stopping (Ctrl-C again to abort)"

    def _line(self) -> Text:
        from rich.text import Text

        return Text(
            progress_text(
                self.title,
                self._latest,
                time.monotonic() - self._began,
                self._say,
                left_s=self._deadline.left_s(),
            ),
            no_wrap=True,
        )


def progress_text(
    title: str,
    progress: Progress | None,
    seconds: float,
    say: Callable[[int], str] = output.duration,
    *,
    left_s: float | None = None,
) -> str:
    """Return the line: ``cpsat on vgg16: best 12.34 ms, bound 12.01 ms, gap 2.67 %, 4 s, at most 56 s more``."""
    parts: list[str] = []
    if progress is not None and progress.objective is not None:
        parts.append(f"best {say(progress.objective)}")
    if progress is not None and progress.bound is not None:
        parts.append(f"bound {say(progress.bound)}")
    if progress is not None and progress.objective and progress.bound is not None:
        parts.append(f"gap {output.gap((progress.objective - progress.bound) / progress.objective)}")
    parts.append(f"{seconds:.0f} s")
    if left_s is not None:
        parts.append(f"at most {left_s:.0f} s more")
    return f"{output.printable(title)}: {', '.join(parts)}"
