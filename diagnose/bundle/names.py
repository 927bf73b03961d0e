"""Other names for what tells where a job ran and whose it is: hosts, users, addresses, paths.

Enters: bytes of texts, first to find names and then to replace them. Leaves: the same texts, in which one host has one name in
every file. New names sort as the old ones do, because places are listed in the order of their names.
"""

import bisect
import re
from collections.abc import Iterable

#: Words that stand where names stand, and are none.
_COMMON = frozenset(
    b"""
    admin all auto bash cluster container cpu cuda data default dev device docker false global gpu gpus home host hostname hosts
    instance job jobs lib local localhost localdomain log logs main master max memory min model name nccl node nodes none null
    nvidia process python rank ranks root run server share shared slurm step steps test time tmp torch train trainer training
    true ubuntu unknown user username users work worker workers world
    """.split()
)
#: What stands where a user stands, and tells nobody who it is.
_NOBODY = frozenset(b"false git none nobody null root true ubuntu user".split())
#: Folders of every system: what lies in the first tells nobody anything, and of the second the name alone.
_SYSTEM = frozenset(b"bin dev etc lib lib64 proc sbin sys usr".split())
_ROOTS = frozenset(b". .. Users home mnt opt root run tmp var".split())
#: From here on a path is that of a public package.
_PACKAGES = re.compile(rb"(?:site-packages|dist-packages|python\d(?:\.\d{1,2})?)\Z")
_HOST = rb"([A-Za-z0-9][A-Za-z0-9.-]{0,252})"
_QUOTE = rb"\\?[\"']?"
_IS = _QUOTE + rb"\s{0,12}[=:]\s{0,3}" + _QUOTE
#: Where hosts are named: settings and columns, NCCL's log, nccl-tests, syslog, a launcher's prefix; or whole, with a domain.
_HOSTS = tuple(
    re.compile(pattern)
    for pattern in (
        rb"(?i)\b(?:host[_-]?name|node[_-]?name|master[_-]?addr|rdzv[_-]?endpoint)" + _IS + _HOST,
        rb"\b(?:host|Host|HOST|instance)" + _IS + _HOST,
        rb"(?m)(?:^|[\s\]])" + _HOST + rb":\d{1,9}:\d{1,9} \[\d{1,4}\] (?:NCCL|RCCL)\b",
        rb"\bPid\s{1,9}\d{1,9} on\s{1,99}" + _HOST + rb"\s{1,9}device\b",
        rb"(?m)^[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d " + _HOST + rb" [\w./-]{1,80}(?:\[\d{1,9}\])?:",
        rb"\[rank\d{1,7}@" + _HOST + rb"\]",
        rb"(?<![\w.@/:-])([A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,6}\.(?:com|net|org|edu|gov|internal|local|lan|corp|cloud))(?![\w.-])",
    )
)
_USER = rb"([A-Za-z_][A-Za-z0-9_.-]{0,63})"
_USER_IS = rb"\b(?:USER|LOGNAME|USERNAME|SLURM_JOB_USER|user_?name|owner)" + _IS
_USERS = tuple(
    re.compile(pattern)
    for pattern in (
        rb"/(?:home|Users)\\?/" + _USER,
        _USER_IS + _USER,
        rb"\b" + _USER + rb"@[A-Za-z0-9-]{1,63}\.[A-Za-z]",
    )
)
#: What metadata calls the job, as a mapping of YAML or JSON.
_VALUE = rb"(?:\"([^\"\\\n]{1,500})\"|'([^'\n]{1,500})'|([^\s\"'\n,}][^\n,}]{0,499}))"
_JOBS = re.compile(rb"(?m)(?:^|[{,])\s{0,8}" + _QUOTE + rb"(?:job_id|trial_name|name)" + _QUOTE + rb":\s{0,3}" + _VALUE)
_IP = rb"(?<![\w.-])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w-]|\.\d)"
#: What is replaced wherever it stands. Addresses of the other kind have a letter, so that times and counts are none; a path has
#: several parts, or is the name of a file system.
_ANYWHERE = {
    "user": _USER_IS + rb"[A-Za-z_][A-Za-z0-9_.-]{0,63}",
    "url": rb"\b(?:https?|wss?|s3|gs|abfss?|hdfs|ssh|git|oci)://[^\s\"'<>\\)\]}]{1,2000}",
    "mail": rb"\b[A-Za-z0-9][A-Za-z0-9._+-]{0,63}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}\b",
    "path": rb"(?<![\w.~/<\\-])(?:\\?/(?:[\w.@%+~=-]{1,255}\\?/)+[\w.@%+~=-]{0,255}"
    rb"|/(?:scratch|work|data\d{0,3}|mnt|nfs|lustre|gpfs|workspace)(?![\w/]))",
    "ip": _IP,
    "ip6": rb"(?<![\w:.])(?=[0-9:]{0,38}[a-f])(?:(?:[0-9a-f]{1,4}:){3,7}[0-9a-f]{1,4}"
    rb"|(?:[0-9a-f]{1,4}:){1,6}(?::[0-9a-f]{1,4}){1,6})(?![\w:])",
}
#: Addresses that every machine has.
_KEPT_IPS = (b"127.", b"0.0.0.0", b"255.")
#: Octets of new addresses: of three digits each, so that their order as text is their order.
_OCTETS = range(100, 255)
#: Names of one kind that are kept at most.
MAX_NAMES = 200_000


class Names:
    """Names found in the files of a job, and what stands for them. First `find` is called with every text, then `replace`."""

    def __init__(self) -> None:
        self._hosts: set[bytes] = set()
        self._users: set[bytes] = set()
        self._ips: set[bytes] = set()
        self._new: dict[bytes, bytes] = {}
        self._domains: dict[bytes, bytes] = {}
        self._parts: dict[bytes, bytes] = {}
        self._new_users: dict[bytes, bytes] = {}
        self._once: dict[bytes, bytes] = {}
        self._pattern: re.Pattern[bytes] | None = None
        self._sorted_ips: list[bytes] = []
        self._jobs: dict[bytes, bytes] = {}

    @property
    def counts(self) -> dict[str, int]:
        """Count the names of each kind."""
        found = {
            "hosts": len({host.partition(b".")[0] for host in self._hosts}),
            "users": len(self._users),
            "addresses": len(self._ips),
            "paths": len(self._parts),
        }
        return {kind: n for kind, n in found.items() if n}

    def table(self) -> dict[str, str]:
        """List what stands for what: new name -> old one."""
        pairs = [
            (new, old) for found in (self._new, self._new_users, self._parts, self._jobs) for old, new in found.items()
        ]
        pairs += [(self._domains[domain], domain) for domain in self._domains]
        pairs += [(self._replace_ip(ip), ip) for ip in self._sorted_ips]
        pairs += [(new, old.partition(b" ")[2]) for old, new in self._once.items()]
        return {new.decode(): old.decode("utf-8", "replace") for new, old in sorted(pairs)}

    def add_hosts(self, hosts: Iterable[str]) -> None:
        """Take hosts from where they are known as such."""
        for host in hosts:
            self._add_host(host.encode())

    def find(self, text: bytes) -> None:
        """Find the names in a text."""
        for pattern in _HOSTS:
            for found in pattern.finditer(text):
                self._add_host(found[1])
        for pattern in _USERS:
            for found in pattern.finditer(text):
                user = found[1].strip(b".-")
                if user and user.lower() not in _NOBODY and len(self._users) < MAX_NAMES:
                    self._users.add(user)
        for found in re.finditer(_IP, text):
            if not found[0].startswith(_KEPT_IPS) and len(self._ips) < MAX_NAMES:
                self._ips.add(found[0])

    def _add_host(self, host: bytes) -> None:
        """Take a host unless it is a number, an address or a common word."""
        host = host.strip(b".-")
        if re.fullmatch(_IP, host):
            self._ips.add(host)
        elif (
            host
            and host.lower() not in _COMMON
            and not re.fullmatch(rb"[\d.:-]+", host)
            and len(self._hosts) < MAX_NAMES
        ):
            self._hosts.add(host)

    def replace(self, text: bytes) -> bytes:
        """Replace all names in a text."""
        if self._pattern is None:
            self._settle()
        assert self._pattern is not None
        return self._pattern.sub(self._replace_one, text)

    def replace_jobs(self, text: bytes) -> bytes:
        """Replace what metadata calls the job, in its keys alone: such a name may be any word."""

        def rename(found: re.Match[bytes]) -> bytes:
            at = next(group for group in (1, 2, 3) if found[group] is not None)
            first, last = (place - found.start() for place in found.span(at))
            new = self._jobs.setdefault(found[at].strip(), b"job-%d" % (len(self._jobs) + 1))
            return found[0][:first] + new + found[0][last:]

        return _JOBS.sub(rename, text)

    def _settle(self) -> None:
        """Choose new names when all old ones are known."""
        labels = sorted({host.partition(b".")[0] for host in self._hosts})
        width = max(3, len(str(len(labels))))
        self._new = {label: b"host-%0*d" % (width, n) for n, label in enumerate(labels, start=1)}
        domains = sorted({host.partition(b".")[2] for host in self._hosts} - {b""})
        self._domains = {domain: b"domain-%d" % n for n, domain in enumerate(domains, start=1)}
        users = sorted(self._users)
        width = len(str(len(users)))
        for n, user in enumerate(users, start=1):
            self._new_users[user] = b"user-%0*d" % (width, n)
            # A user called `max` is replaced where users stand, and nowhere else.
            if len(user) > 3 and user not in self._new and user.lower() not in _COMMON:
                self._new[user] = self._new_users[user]
        self._sorted_ips = sorted(self._ips)
        tails = [_bounded(name) for name in self._new]
        names = rb"|(?P<name>" + rb"|".join(sorted(set(tails))) + rb")" if tails else b""
        anywhere = rb"|".join(rb"(?P<%s>%s)" % (kind.encode(), pattern) for kind, pattern in _ANYWHERE.items())
        self._pattern = re.compile(anywhere + names)

    def _replace_one(self, found: re.Match[bytes]) -> bytes:
        """Replace one name."""
        text, kind = found[0], found.lastgroup
        match kind:
            case "user":
                said = re.search(_USER + rb"\Z", text)
                assert said is not None
                user = said[1].rstrip(b".-")
                at = said.start()
                return text[:at] + self._new_users.get(user, user) + text[at + len(user) :]
            case "url":
                scheme = text.partition(b"://")[0]
                return scheme + b"://" + self._number(b"url", text)
            case "mail":
                user = text.partition(b"@")[0]
                return self._new_users.get(user) or self._number(b"mail", text)
            case "path":
                return self._replace_path(text)
            case "ip":
                return self._replace_ip(text)
            case "ip6":
                return self._number(b"address", text)
        return self._replace_name(text)

    def _number(self, kind: bytes, text: bytes) -> bytes:
        """Number what is seen for the first time."""
        return self._once.setdefault(kind + b" " + text, kind + b"-%d" % (len(self._once) + 1))

    def _replace_ip(self, ip: bytes) -> bytes:
        """Give the address that stands for one; those of every machine stay."""
        if ip.startswith(_KEPT_IPS):
            return ip
        n, base = bisect.bisect_left(self._sorted_ips, ip), len(_OCTETS)
        octets = (_OCTETS[n // base**power % base] for power in (2, 1, 0))
        return b"10." + b".".join(b"%d" % octet for octet in octets)

    def _replace_path(self, path: bytes) -> bytes:
        """Replace the parts of a path one by one; what lies in a public package stays."""
        parts = re.split(rb"(\\?/)", path)
        is_public = parts[2] in _SYSTEM if len(parts) > 2 else False
        last = len(parts) - 1
        for i in range(2, len(parts), 2):
            part = parts[i]
            if not is_public and _PACKAGES.match(part):
                is_public = True
            elif part in self._new or part in self._new_users:
                parts[i] = self._new.get(part) or self._new_users[part]
            elif part and not is_public and not (i == 2 and part in _ROOTS):
                parts[i] = self._replace_part(part, is_file=i == last)
        return b"".join(parts)

    def _replace_part(self, part: bytes, *, is_file: bool) -> bytes:
        """Give what stands for one part of a path; the end of a file's name says of what kind it is, and stays."""
        end = re.search(rb"(?:\.[A-Za-z][A-Za-z0-9]{0,9}){1,2}\Z", part) if is_file else None
        new = self._parts.get(part)
        if new is None:
            new = (b"file-%d" if end else b"dir-%d") % (len(self._parts) + 1) + (end[0] if end else b"")
            self._parts[part] = new
        return new

    def _replace_name(self, token: bytes) -> bytes:
        """Replace a host or a user at the beginning of a word, the longest that is known."""
        if token.endswith(b"]"):  # a list of hosts, as schedulers write it
            return b"hosts[..]"
        at = len(token)
        while at > 0:
            new = self._new.get(token[:at])
            if new is not None:
                rest = token[at:]
                domain = next((d for d in self._domains if rest == b"." + d), None)
                return new + (b"." + self._domains[domain] if domain else rest)
            at = max(token.rfind(b"-", 0, at), token.rfind(b".", 0, at))
        return token


def _bounded(name: bytes) -> bytes:
    """Give the pattern of the words that may be a name: those with its letters, so that many hosts have one pattern."""
    letters = re.split(rb"\d", name, maxsplit=1)[0]
    if letters == name and re.fullmatch(rb"[A-Za-z]+", name):  # a word: nothing may be joined to it
        return rb"(?<![\w-])" + re.escape(name) + rb"(?:\.[\w.-]{1,255})?(?![\w-])"
    word = rb"[A-Za-z0-9]{0,64}(?:[.-][A-Za-z0-9]{1,64}){0,16}"
    return rb"(?<![A-Za-z0-9])" + re.escape(letters) + rb"(?:\[\d[\d,-]{0,500}\]|" + word + rb")"
