"""What an engine's own count says of slots that cool: the second sign, where no first one comes.

The first is the engine's end of file. Where none comes (an engine that does not look at its
connections, one whose answer libcurl could not read), the engine is asked how many sequences it
runs and keeps waiting. Of these some are requests that are known to run: they were at work before
the engine was asked and still are a while after it answered. What it counts above them may be what
cools; what cools above that has come to its end. A count may lag behind what happens, so the larger
of two in a row holds, and tells only of what cooled before the first of them.
"""


class CoolingCount:
    """The counts of one engine. Made anew when nothing cools any more."""

    def __init__(self) -> None:
        self._last: int | None = None

    def free(self, counted: int | None, at_work: int, cooling: int) -> int:
        """Take a count, and return how many of the slots that cool are surely free.

        `counted`: sequences in the engine, None where it did not tell. `at_work`: requests that
        were there before and after; each is one sequence at least. `cooling`: slots that cool
        now and did so before the engine was asked for the count before this one.
        """
        last, self._last = self._last, None
        if counted is None:
            return 0
        strangers = self._last = max(0, counted - at_work)
        return 0 if last is None else max(0, cooling - max(last, strangers))
