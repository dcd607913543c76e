"""Where servers are and what opens them: URLs and keys, neither of which may leak a secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from kvbench.errors import SettingError, UsageError
from kvbench.paths import expanded


@dataclass(frozen=True, slots=True)
class Target:
    """Where a server is: host, port, TLS and path prefix."""

    host: str
    port: int
    tls: bool
    prefix: str

    @classmethod
    def parse(cls, url: str, name: str = "url", source: str = "argument") -> Target:
        """From ``http://host:port/prefix``. Credentials in a URL are refused: they leak."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise SettingError(name, redact_url(url), f"a URL ({error})", source) from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            allowed = "http://HOST[:PORT] or https://HOST[:PORT]"
            raise SettingError(name, redact_url(url), allowed, source)
        if parts.username or parts.password or parts.query or parts.fragment:
            allowed = "a URL without credentials, query or fragment (see api_key_env, api_key_file)"
            raise SettingError(name, redact_url(url), allowed, source)
        prefix = parts.path.rstrip("/")
        if prefix.endswith("/v1"):
            allowed = "the server's URL up to, not including, /v1"
            raise SettingError(name, redact_url(url), allowed, source)
        tls = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if tls else 80), tls, prefix)

    @property
    def authority(self) -> str:
        """The ``Host`` header's value."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def redact_url(url: str) -> str:
    """A URL fit for messages: no user, password, query or fragment."""
    head, at, tail = url.rpartition("@")
    bare = (head.partition("://")[0] + "://" + tail if "://" in head else tail) if at else url
    return bare.partition("?")[0].partition("#")[0]


def api_headers(settings: Mapping[str, str | None], environ: Mapping[str, str]) -> dict[str, str]:
    """The authorization header from ``api_key_env`` or ``api_key_file``; never from a suite."""
    variable, file = settings.get("api_key_env"), settings.get("api_key_file")
    if variable and file:
        raise UsageError("api_key_env and api_key_file: give one of them")
    if variable:
        if variable not in environ:
            raise SettingError("api_key_env", variable, "a variable that is set")
        return {"Authorization": f"Bearer {environ[variable].strip()}"}
    if file:
        try:
            key = expanded(file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise SettingError(
                "api_key_file", file, f"a readable file ({error.strerror})"
            ) from None
        return {"Authorization": f"Bearer {key}"}
    return {}


def redacted(text: str, headers: Mapping[str, str]) -> str:
    """A message without the key, should the server have echoed it."""
    for value in headers.values():
        text = text.replace(value.removeprefix("Bearer "), "***")
    return text
