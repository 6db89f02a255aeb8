"""Makes the certificates of a run: a CA of its own, and one certificate that all its processes show.

The CA's key is never written: nobody can sign another one, and the folder says who takes part.
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import TYPE_CHECKING

from planaria.job.errors import UserError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

CA, CERTIFICATE, KEY = "ca.pem", "cert.pem", "key.pem"


def make_certificates(folder: Path, days: float) -> None:
    """Writes ca.pem, cert.pem and key.pem, which the user alone can read, into a new folder or an empty one.

    Args:
        folder: where they go.
        days: for which they are valid from now on; they are from a day ago on, as clocks differ.

    Raises:
        UserError: there are some already, the folder cannot be written, or cryptography is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise UserError(
            "certificates are made by cryptography, which cannot be imported. Install it: pip install cryptography."
        ) from None
    now = datetime.datetime.now(datetime.UTC)

    def signed(name: str, key: EllipticCurvePrivateKey, *, is_ca: bool) -> x509.Certificate:
        built = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _CA_NAME)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1 + max(0.0, -days)))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), critical=True)
        )
        return built.sign(ca_key, hashes.SHA256())

    ca_key, own_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    encoding = serialization.Encoding.PEM
    private = own_key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write(
        folder,
        {
            CA: signed(_CA_NAME, ca_key, is_ca=True).public_bytes(encoding),
            CERTIFICATE: signed("planaria", own_key, is_ca=False).public_bytes(encoding),
            KEY: private,
        },
    )


_CA_NAME = "planaria run"


def _write(folder: Path, files: dict[str, bytes]) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        there = [name for name in files if (folder / name).exists()]
        if there:
            raise UserError(f"{folder / there[0]} is there already. Name another folder, or remove this one first.")
        for name, data in files.items():
            with os.fdopen(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}. Name another folder.") from None
