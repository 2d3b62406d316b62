"""Shares and quantiles of the normal law and of Student's t.

SciPy has them, and loading it is half of a process's start: it is loaded when the first is asked,
which in processes that only simulate is never.
"""


def normal_quantile(share: float) -> float:
    """Return the value that a standard normal variable is below with this chance."""
    from scipy.special import ndtri

    return float(ndtri(share))


def student_share(freedom: float, value: float) -> float:
    """Return the chance that Student's t is below a value."""
    from scipy.special import stdtr

    return float(stdtr(freedom, value))


def student_quantile(freedom: float, share: float) -> float:
    """Return the value that Student's t is below with this chance."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, share))
