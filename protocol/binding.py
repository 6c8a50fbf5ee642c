"""What binds a session: the statement that the trainer signs before it can know the nonce.

Specified in spec/session.md, section 7.
"""

import hashlib

from protocol import messages as m
from protocol.encoding import encode
from protocol.errors import VerificationError
from protocol.keys import PublicKey
from protocol.notes import open_note

STATEMENT = "training-witness/v1/session"


def statement_text(session: str, policy: m.Policy, commitment: str, head: bytes) -> str:
    """What the prover signs before it knows the nonce: session, commitment, policy and head, one a line."""
    policy_digest = hashlib.sha256(encode(policy)).hexdigest()
    return f"{STATEMENT}\n{session}\n{commitment}\n{policy_digest}\n{hashlib.sha256(head).hexdigest()}\n"


def check_statement(
    statement: str, key: PublicKey, session: str, policy: m.Policy, commitment: str, head: bytes
) -> None:
    """Checks that the trainer's key binds this session, policy, commitment and head.

    Raises:
        VerificationError: `statement`, or a signature's code.
    """
    note = open_note(statement.encode(), [key])
    if note.text != statement_text(session, policy, commitment, head):
        raise VerificationError("statement", "the signed statement binds another session, policy, nonce or head")
