"""Sessions over HTTP: frames in, frames out. It moves bytes and decides nothing; `protocol` does.

    POST /v1/sessions          a Hello frame        -> a Welcome frame; the server draws the session's id
    POST /v1/sessions/{id}     any other frame      -> the frame that answers it
    GET  /v1/head              the latest signed head, a text to compare with what others were shown
    GET  /v1/health            version, run id, steps and head size, as JSON
    GET  /v1/ledger            the claims of the run's ledgers, as JSON
    GET  /v1/ledger/{tier}/{digest}   the proven answer about a digest (`protocol.answer`), as JSON; no session needed
    POST /v1/ledger/{tier}     up to 2,048 digests, 32 bytes each -> an answer about the first of them, as many as fit

Frames are `application/octet-stream`. A refusal has the HTTP status of its code (`protocol.errors.CODES`; 400 where the
table lacks it), a Pending frame 202 with Retry-After, every other frame 200. Whatever is not a frame is JSON,
`{"code", "message"}`. The server speaks plain HTTP: in public it stands behind a reverse proxy that speaks TLS.

`witness.http.server` needs no torch; `witness.http.client` needs neither torch nor the server's libraries.
"""

from protocol.errors import UsageError
from protocol.messages import MAX_REQUEST

FRAME_TYPE = "application/octet-stream"
DIGEST_BYTES = 32
DIGESTS_AT_ONCE = MAX_REQUEST // DIGEST_BYTES
"""Digests in one request about many."""


def extra_missing(error: ModuleNotFoundError) -> UsageError:
    """What to raise where a library of the `http` extra is missing (`extra-missing`)."""
    return UsageError(
        "extra-missing",
        f"sessions over HTTP need {error.name}; install it with: pip install 'training-witness[http]'",
        evidence={"missing": error.name},
    )
