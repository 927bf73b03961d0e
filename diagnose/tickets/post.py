"""Post JSON to a web service, again where it fails for a while.

Enters: an address and what makes a request. Leaves: nothing when it has arrived, or an error that shows no secret.
"""

from collections.abc import Callable, Mapping

import httpx
import tenacity

from diagnose.tickets.target import RefusedError, SilentError
from diagnose.tickets.within import within

#: Tries of one message: 0.5, 1, 2, 4 and 8 seconds apart, each with up to half a second more so that many do not come at once.
TRIES = 6
FIRST_WAIT_S = 0.5
#: A service that asks for a longer wait is asked again sooner.
MOST_WAIT_S = 30.0
#: Answers that say: later.
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})


class _LaterError(Exception):
    """It failed for now: what happened, and after how many seconds the service wants to be asked again."""

    def __init__(self, said: str, after_s: float | None = None) -> None:
        super().__init__(said)
        self.said = said
        self.after_s = after_s


class Poster:
    """Posts to one address; `name` is the target as errors show it, `timeout_s` is for one try, as a whole."""

    def __init__(self, name: str, url: str, timeout_s: float) -> None:
        self._name = name
        self._url = url
        self._timeout_s = timeout_s
        self._client = httpx.Client(timeout=timeout_s, follow_redirects=False)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def post(self, make_request: Callable[[], tuple[Mapping[str, str], bytes]]) -> None:
        """Post until it has arrived; `make_request` is asked before every try, because signatures hold the time.

        Raises
        ------
        RefusedError
            The service does not want this message.
        SilentError
            It did not answer, or was not able to, at any try.
        """
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(TRIES),
            wait=_wait,
            retry=tenacity.retry_if_exception_type(_LaterError),
            reraise=True,
        )
        try:
            retrying(self._post_once, make_request)
        except _LaterError as error:
            raise SilentError(f"{self._name}: {error.said}, {TRIES} times; sent again the next time") from None

    def _post_once(self, make_request: Callable[[], tuple[Mapping[str, str], bytes]]) -> None:
        """Try once. What a service answers beside its status is not looked at: it may repeat what is secret."""
        headers, body = make_request()

        def ask() -> tuple[int, str]:
            with self._client.stream("POST", self._url, content=body, headers=dict(headers)) as answer:
                return answer.status_code, answer.headers.get("retry-after", "")

        try:
            status, after = within(self._timeout_s, ask)
        except TimeoutError:
            raise _LaterError(f"has not answered within {self._timeout_s:g} s") from None
        except httpx.TransportError as error:
            raise _LaterError(f"does not answer ({type(error).__name__})") from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise RefusedError(f"{self._name}: cannot be posted to ({type(error).__name__})") from None
        if status in _LATER:
            raise _LaterError(f"answered {status}", min(float(after), MOST_WAIT_S) if after.isdecimal() else None)
        if not 200 <= status < 300:
            raise RefusedError(f"{self._name}: answered {status}; expected 2xx")


def _wait(state: tenacity.RetryCallState) -> float:
    """Say how long to wait: what the service asks for, else twice as long as before."""
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, _LaterError) and error.after_s is not None:
        return error.after_s
    return backoff()(state)


def backoff() -> tenacity.wait.wait_base:
    """Wait twice as long every time, and a little more by chance."""
    return tenacity.wait_exponential(multiplier=FIRST_WAIT_S, max=MOST_WAIT_S) + tenacity.wait_random(0, FIRST_WAIT_S)
