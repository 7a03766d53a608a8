"""An account on a server, and TLS: the options that all servers have by the same names."""

import ssl
from dataclasses import dataclass, field

from trident.errors import ConfigError
from trident.redaction import SECRET
from trident.setting_types import Settings


@dataclass(frozen=True, repr=False, kw_only=True)
class ServerAccount(Settings):
    """An account on a server, and TLS.

    Attributes
    ----------
    user, password
        The account; None if the server asks for none, or the URL names it.
    tls
        True encrypts connections.
    tls_ca_file, tls_cert_file, tls_key_file
        PEM files: the authorities to trust (None: the system's), and this client's own certificate and key.
    """

    user: str | None = None
    password: str | None = field(default=None, metadata=SECRET)
    tls: bool = False
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.has_tls_options and not self.encrypts:
            raise ConfigError(f"{self.subject()} has TLS options and no TLS: nothing would be encrypted; give tls=True")

    @property
    def encrypts(self) -> bool:
        """Whether connections are encrypted."""
        return self.tls

    @property
    def has_tls_options(self) -> bool:
        """Whether there is what only TLS needs."""
        return bool(self.tls_ca_file or self.tls_cert_file or self.tls_key_file)

    def tls_context(self, check_hostname: bool = True) -> ssl.SSLContext | None:
        """Return what checks the server's certificate and has the client's; None without TLS. `ConfigError` names bad files."""
        if not self.encrypts:
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca_file)
            context.check_hostname = check_hostname
            if self.tls_cert_file is not None:
                context.load_cert_chain(self.tls_cert_file, self.tls_key_file)
        except (OSError, ssl.SSLError) as error:
            files = f"{self.tls_ca_file}, {self.tls_cert_file}, {self.tls_key_file}"
            raise ConfigError(f"read the TLS files {files}: {error}; give PEM files") from error
        return context
