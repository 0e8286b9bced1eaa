"""Every gate that can refuse an attach: is it open, and what opens it.

Law: pure; facts come in as `SelfCredentials` and `TargetCredentials`, and what the kernel would say
(ptrace(2), "Ptrace access mode checking") comes out, gate by gate, with a remedy for each place that sfsample
may run in.  A gate that cannot be judged is "unknown", never a guess.
"""

from errno import ENOSYS
from typing import Literal, NamedTuple

CAP_SYS_PTRACE = 19

Status = Literal["pass", "fail", "unknown"]


class SelfCredentials(NamedTuple):
    """What the kernel looks at on the tracer's side."""

    uid: int
    gid: int
    permitted: int  # capability sets, as bits
    effective: int
    yama: str  # kernel.yama.ptrace_scope; empty: there is no Yama
    user_namespace: str | None
    outermost: bool = False  # that is the first one, in which capabilities count for every process
    refused_calls: tuple[
        tuple[str, int], ...
    ] = ()  # system calls that are refused whoever the target is; errno
    label: str = ""  # of the security module

    @property
    def may_trace(self) -> bool:
        """Whether we hold CAP_SYS_PTRACE (in our user namespace)."""
        return bool(self.effective >> CAP_SYS_PTRACE & 1)


class TargetCredentials(NamedTuple):
    """What the kernel looks at on the target's side."""

    uids: tuple[int, ...]  # real, effective, saved
    gids: tuple[int, ...]
    permitted: int
    tracer: tuple[int, str] | None  # pid and name of who traces a thread of it already
    files_owner: int | None  # of its files in /proc: root's when the process is not dumpable
    user_namespace: str | None  # None: we may not even look
    label: str = ""


class Remedy(NamedTuple):
    """What to do, by the place sfsample runs in.  An empty one: the host's holds there too."""

    host: str
    systemd: str = ""
    docker: str = ""
    kubernetes: str = ""


class Gate(NamedTuple):
    """One reason for which an attach may be refused."""

    name: str
    status: Status
    found: str  # what was seen
    remedy: Remedy | None = None


_DEBUG_POD = "kubectl debug -it POD --image=IMAGE --target=CONTAINER --profile=general"
_PRIVILEGE = Remedy(
    host="run as root: sudo sfsample ...",
    systemd="the unit that runs sfsample: AmbientCapabilities=CAP_SYS_PTRACE",
    docker="start sfsample's container with --cap-add=SYS_PTRACE --pid=container:NAME",
    kubernetes=_DEBUG_POD,
)
_PARENT = (
    "run as root (sudo sfsample ...), start the program with sfsample -- COMMAND, "
    "or: sudo sysctl kernel.yama.ptrace_scope=0"
)
_SECCOMP = Remedy(
    host="start sfsample outside the sandbox whose seccomp filter this is",
    systemd="the unit that runs sfsample: SystemCallFilter=@debug",
    docker="--cap-add=SYS_PTRACE (opens it in docker's own profile), or --security-opt seccomp=unconfined",
    kubernetes="securityContext.seccompProfile.type: Unconfined, or a profile that allows {call}",
)


def gates(us: SelfCredentials, them: TargetCredentials | None) -> tuple[Gate, ...]:
    """Judge every gate; without a target, those that are ours alone."""
    if them is None:
        return (_privilege(us), _yama(us), *_calls(us))
    return (_tracer(them), _user(us, them), _dumpable(us, them), _capabilities(us, them), _yama(us),
            _namespace(us, them), *_calls(us), _module(us, them))  # fmt: skip


def closed(us: SelfCredentials, them: TargetCredentials) -> tuple[str, ...]:
    """Return lines that name the gates which are closed between us and them, and the way through."""
    shut = [gate for gate in gates(us, them) if gate.status == "fail"]
    if shut and shut[0].name == "tracer":
        shut = shut[:1]  # nothing else matters before that one has gone
    lines = dict.fromkeys(line for gate in shut for line in _told(gate))
    return tuple(lines) or (
        "a security module (AppArmor, SELinux) or a seccomp filter may forbid ptrace;",
        "in a container, start it with --cap-add=SYS_PTRACE; sfsample doctor -p PID shows every gate",
    )


def _told(gate: Gate) -> tuple[str, ...]:
    """Shorten a gate to what is found, and the remedies of host and container."""
    remedy = gate.remedy
    if remedy is None:
        return (gate.found,)
    container = (f"in a container: {remedy.docker}",) if remedy.docker else ()
    return (f"{gate.found};", remedy.host, *container)


def _privilege(us: SelfCredentials) -> Gate:
    if us.may_trace:
        where = "" if us.outermost else " (in a user namespace: it counts for processes of that one)"
        return Gate("capability", "pass", f"CAP_SYS_PTRACE is held, by uid {us.uid}{where}")
    return Gate("capability", "unknown", f"uid {us.uid} without CAP_SYS_PTRACE: only its own processes",
                _PRIVILEGE)  # fmt: skip


def _user(us: SelfCredentials, them: TargetCredentials) -> Gate:
    for kind, ids, our in (("uid", them.uids, us.uid), ("gid", them.gids, us.gid)):
        other = next((number for number in ids if number != our), None)
        if other is not None and not us.may_trace:
            owner = ids[1] if ids[1] != our else other
            found = f"it belongs to {kind} {owner} and you are {kind} {our} without CAP_SYS_PTRACE"
            return Gate("user", "fail", found, _PRIVILEGE)
    owner = them.uids[1] if them.uids else us.uid
    how = "you are too" if owner == us.uid else f"you are uid {us.uid} with CAP_SYS_PTRACE"
    return Gate("user", "pass", f"it belongs to uid {owner} and {how}")


def _dumpable(us: SelfCredentials, them: TargetCredentials) -> Gate:
    if them.files_owner is None:
        return Gate("dumpable", "unknown", "its files in /proc cannot be looked at")
    if not them.uids or them.files_owner == them.uids[1]:
        return Gate("dumpable", "pass", "it may be looked at by its user")
    found = "it is not dumpable (setuid, unreadable, or it called prctl(PR_SET_DUMPABLE, 0))"
    if us.may_trace:
        return Gate("dumpable", "pass", f"{found}, which CAP_SYS_PTRACE overrides")
    return Gate("dumpable", "fail", found, _PRIVILEGE)


def _capabilities(us: SelfCredentials, them: TargetCredentials) -> Gate:
    if us.may_trace or not them.permitted & ~us.permitted:
        return Gate("capabilities", "pass", "it holds none that you would have to hold")
    return Gate("capabilities", "fail", "it holds capabilities that you do not hold", _PRIVILEGE)


def _yama(us: SelfCredentials) -> Gate:
    name = "ptrace_scope"
    scope = f"kernel.yama.ptrace_scope is {us.yama}"
    if us.yama == "":
        return Gate(name, "pass", "there is no Yama")
    if us.yama == "0" or (us.yama in ("1", "2") and us.may_trace):
        return Gate(name, "pass", f"{scope}{', and you hold CAP_SYS_PTRACE' if us.yama != '0' else ''}")
    if us.yama == "1":
        return Gate(name, "fail", f"{scope}: only a parent may trace", _PRIVILEGE._replace(host=_PARENT))
    if us.yama == "2":
        return Gate(name, "fail", f"{scope}: only CAP_SYS_PTRACE may trace", _PRIVILEGE)
    return Gate(name, "fail", f"{scope}: nobody may trace until the next boot",
                Remedy("a sysctl.d file sets it; it cannot be lowered at run time: change the file, and boot",
                       docker="", kubernetes="on the node, as for a host"))  # fmt: skip


def _namespace(us: SelfCredentials, them: TargetCredentials) -> Gate:
    """Our capabilities count in our user namespace and in those below it, and no others."""
    name = "user namespace"
    hidden = them.user_namespace is None and us.may_trace and not us.outermost
    if them.user_namespace == us.user_namespace and not hidden:
        return Gate(name, "pass", "it runs in yours")
    if us.outermost and us.may_trace:
        return Gate(name, "pass", "you hold CAP_SYS_PTRACE in the first one, which counts in all")
    if them.user_namespace is None and not hidden:
        return Gate(name, "unknown", "which one it runs in may not be seen")
    found = "it runs in another user namespace (a container, or you do)"
    return Gate(name, "fail", found, Remedy(
        "run as root on the host, outside every container",
        docker="inside its own container, started with --cap-add=SYS_PTRACE",
        kubernetes=_DEBUG_POD))  # fmt: skip


def _tracer(them: TargetCredentials) -> Gate:
    if them.tracer is None:
        return Gate("tracer", "pass", "nobody traces it")
    pid, name = them.tracer
    return Gate("tracer", "fail",
                f"process {pid} ({name}) traces it already, and there can be only one tracer",
                Remedy(f"end that one first (gdb, strace, another sampler: kill {pid})"))  # fmt: skip


def _calls(us: SelfCredentials) -> tuple[Gate, ...]:
    refused = dict(us.refused_calls)
    return tuple(_call(call, refused.get(call)) for call in ("ptrace", "process_vm_readv"))


def _call(call: str, errno: int | None) -> Gate:
    if errno is None:
        return Gate(f"{call}(2)", "pass", "the kernel takes it")
    if errno == ENOSYS:
        return Gate(f"{call}(2)", "fail", f"{call}(2) is not there: the kernel lacks it, or seccomp hides it",
                    Remedy("a kernel with CONFIG_CROSS_MEMORY_ATTACH, outside a sandbox"))  # fmt: skip
    remedy = _SECCOMP._replace(kubernetes=_SECCOMP.kubernetes.format(call=call))
    how = "kills who calls it" if errno < 0 else "refuses it"
    return Gate(f"{call}(2)", "fail", f"a seccomp filter on sfsample {how}: {call}(2)", remedy)


def _module(us: SelfCredentials, them: TargetCredentials) -> Gate:
    name = "security module"
    if us.label == them.label:
        return Gate(name, "pass", f"both run as {us.label}" if us.label else "none has a say")
    found = f"it runs as {them.label or 'unconfined'}, you as {us.label or 'unconfined'}: that may forbid it"
    return Gate(name, "unknown", found, Remedy(
        'dmesg or the audit log tells (apparmor="DENIED", avc: denied)',
        docker="--security-opt apparmor=unconfined",
        kubernetes="securityContext.appArmorProfile.type: Unconfined"))  # fmt: skip
