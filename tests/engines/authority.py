"""A CA of etcd's own, as an administrator has one: it signs certificates for an address, valid as long as is wanted."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


class Authority:
    """Signs what it is asked for."""

    def __init__(self, name: str = "etcd") -> None:
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._own = self._built(self._name, self._key, 365, x509.BasicConstraints(ca=True, path_length=0))

    def write(self, folder: Path, prefix: str = "", *, days: int = 1, address: str = "127.0.0.1") -> Path:
        """Writes PREFIXca.pem, cert.pem and key.pem of a new certificate; returns the folder."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "member")])
        signed = self._built(
            name, key, days, x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        )
        encoding = serialization.Encoding.PEM
        private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        folder.mkdir(exist_ok=True)
        (folder / f"{prefix}ca.pem").write_bytes(self._own.public_bytes(encoding))
        (folder / f"{prefix}cert.pem").write_bytes(signed.public_bytes(encoding))
        (folder / f"{prefix}key.pem").write_bytes(private)
        os.chmod(folder / f"{prefix}key.pem", 0o600)
        return folder

    def _built(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, days: int, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=30))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(extension, critical=True)
            .sign(self._key, hashes.SHA256())
        )
