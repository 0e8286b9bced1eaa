"""Judges every gate (a check that can refuse an attach): is the gate open, and if not, how to open it.

This module works on values alone.  Source: ptrace(2), "Ptrace access mode checking".
"""

from typing import Literal, NamedTuple

CAP_SYS_PTRACE = 19

Status = Literal["pass", "fail", "unknown"]


class SelfCredentials(NamedTuple):
    """The credentials of sfsample that the kernel checks."""

    uid: int
    gid: int
    permitted: int  # capability sets, as bits
    effective: int
    yama: str  # kernel.yama.ptrace_scope; empty: the kernel has no Yama
    user_namespace: str | None
    outermost: bool = False  # True: in the initial user namespace, so capabilities count for every process
    refused_calls: frozenset[str] = frozenset()  # system calls that a filter refuses for any target
    label: str = ""  # label from the security module (AppArmor, SELinux)

    @property
    def may_trace(self) -> bool:
        """True if sfsample holds CAP_SYS_PTRACE in its own user namespace."""
        return bool(self.effective >> CAP_SYS_PTRACE & 1)


class TargetCredentials(NamedTuple):
    """The credentials of the target that the kernel checks."""

    uids: tuple[int, ...]  # real, effective, saved
    gids: tuple[int, ...]
    permitted: int  # capabilities, as bits
    tracer: tuple[int, str] | None  # pid and name of a process that already traces a thread of the target
    files_owner: int  # uid of the target's files in /proc: root's uid if the target is not dumpable
    user_namespace: str | None  # None: sfsample may not read it
    label: str = ""


class Remedy(NamedTuple):
    """The advice for the user, by the place in which sfsample runs; "": the same as on the host."""

    host: str
    systemd: str = ""
    docker: str = ""
    kubernetes: str = ""


class Gate(NamedTuple):
    """One check of the kernel that may refuse an attach."""

    name: str
    status: Status
    found: str  # sentence about the facts that sfsample has seen
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
    host="start sfsample outside the sandbox that has this seccomp filter",
    systemd="the unit that runs sfsample: SystemCallFilter=@debug",
    docker="--cap-add=SYS_PTRACE (opens it in docker's own profile), or --security-opt seccomp=unconfined",
    kubernetes="securityContext.seccompProfile.type: Unconfined, or a profile that allows the call",
)


def judge_gates(own: SelfCredentials, target: TargetCredentials | None) -> tuple[Gate, ...]:
    """Judge every gate; without a target, the gates that depend on sfsample alone."""
    calls = [_call(own, call) for call in ("ptrace", "process_vm_readv")]
    if target is None:
        return (_privilege(own), _execve(own), _yama(own), *calls)
    return (_tracer(target), _user(own, target), _dumpable(own, target), _capabilities(own, target),
            _execve(own), _yama(own), _namespace(own, target), *calls,
            _security_module(own, target))  # fmt: skip


def closed_gates_help(own: SelfCredentials, target: TargetCredentials) -> tuple[str, ...]:
    """Return help lines that name the closed gates, and the remedies on a host and in a container."""
    closed = [gate for gate in judge_gates(own, target) if gate.status == "fail"]
    # leave out the tracer: to end the tracer helps only if no other gate is closed
    closed = [gate for gate in closed if gate.name != "tracer"] or closed
    lines = []
    for remedy in dict.fromkeys(gate.remedy for gate in closed):  # one remedy may open several gates
        causes = [gate.found for gate in closed if gate.remedy == remedy]
        lines += [f"{cause};" for cause in causes] + [remedy.host] if remedy else causes
        if remedy and remedy.docker:
            lines.append(f"in a container: {remedy.docker}")
    return tuple(lines) or (
        "a security module (AppArmor, SELinux) or a seccomp filter may forbid ptrace;",
        "in a container, start it with --cap-add=SYS_PTRACE",
    )


def _privilege(own: SelfCredentials) -> Gate:
    name = "capability"
    if own.may_trace:
        where = "" if own.outermost else " (only for processes in its own user namespace)"
        return Gate(name, "pass", f"uid {own.uid} holds CAP_SYS_PTRACE{where}")
    found = f"uid {own.uid} without CAP_SYS_PTRACE: may trace only its own processes"
    return Gate(name, "unknown", found, _PRIVILEGE)


def _user(own: SelfCredentials, target: TargetCredentials) -> Gate:
    for kind, ids, own_id in (("uid", target.uids, own.uid), ("gid", target.gids, own.gid)):
        other = next((number for number in ids if number != own_id), None)
        if other is not None and not own.may_trace:
            owner = ids[1] if ids[1] != own_id else other
            found = f"it belongs to {kind} {owner} and you are {kind} {own_id} without CAP_SYS_PTRACE"
            return Gate("user", "fail", found, _PRIVILEGE)
    owner = target.uids[1] if target.uids else own.uid
    reason = "you are too" if owner == own.uid else f"you are uid {own.uid} with CAP_SYS_PTRACE"
    return Gate("user", "pass", f"it belongs to uid {owner} and {reason}")


def _dumpable(own: SelfCredentials, target: TargetCredentials) -> Gate:
    if not target.uids or target.files_owner == target.uids[1]:
        return Gate("dumpable", "pass", "it is dumpable: its own user may trace it")
    found = "it is not dumpable (setuid, unreadable, or it called prctl(PR_SET_DUMPABLE, 0))"
    if own.may_trace:
        return Gate("dumpable", "pass", f"{found}, which CAP_SYS_PTRACE overrides")
    return Gate("dumpable", "fail", found, _PRIVILEGE)


def _capabilities(own: SelfCredentials, target: TargetCredentials) -> Gate:
    if own.may_trace or not target.permitted & ~own.permitted:
        return Gate("capabilities", "pass", "it holds no capability that you lack")
    return Gate("capabilities", "fail", "it holds capabilities that you do not hold", _PRIVILEGE)


def _execve(own: SelfCredentials) -> Gate:
    if own.may_trace:
        return Gate("execve(2)", "pass", "your stops do not cost a setuid program its privileges")
    found = "a stop in execve(2) costs a setuid program its privileges: sfsample stops no young process"
    return Gate("execve(2)", "unknown", found)


def _yama(own: SelfCredentials) -> Gate:
    name = "ptrace_scope"
    scope = f"kernel.yama.ptrace_scope is {own.yama}"
    if own.yama == "":
        return Gate(name, "pass", "the kernel has no Yama")
    if own.yama == "0" or (own.yama in ("1", "2") and own.may_trace):
        return Gate(name, "pass", f"{scope}{', and you hold CAP_SYS_PTRACE' if own.yama != '0' else ''}")
    if own.yama == "1":
        return Gate(name, "fail", f"{scope}: only a parent may trace", _PRIVILEGE._replace(host=_PARENT))
    if own.yama == "2":
        return Gate(name, "fail", f"{scope}: only CAP_SYS_PTRACE may trace", _PRIVILEGE)
    remedy = Remedy("a sysctl.d file sets it; it cannot be lowered at run time: change the file, and boot")
    return Gate(name, "fail", f"{scope}: no process may trace until the next boot", remedy)


def _namespace(own: SelfCredentials, target: TargetCredentials) -> Gate:
    """Judge by user namespaces: capabilities count only in sfsample's own namespace and below it."""
    name = "user namespace"
    hidden = target.user_namespace is None and own.may_trace and not own.outermost
    if target.user_namespace == own.user_namespace and not hidden:
        return Gate(name, "pass", "it runs in the same user namespace as you")
    if own.outermost and own.may_trace:
        found = "you hold CAP_SYS_PTRACE in the initial user namespace, so it counts everywhere"
        return Gate(name, "pass", found)
    if target.user_namespace is None and not hidden:
        return Gate(name, "unknown", "you may not see in which user namespace it runs")
    found = "it runs in another user namespace (it is in a container, or you are)"
    return Gate(name, "fail", found, Remedy(
        "run as root on the host, outside every container",
        docker="inside its own container, started with --cap-add=SYS_PTRACE",
        kubernetes=_DEBUG_POD))  # fmt: skip


def _tracer(target: TargetCredentials) -> Gate:
    if target.tracer is None:
        return Gate("tracer", "pass", "no process traces it")
    pid, name = target.tracer
    end = f"end that process first (gdb, strace, another sampler: kill {pid})"
    remedy = "try again: another sfsample traces it only for a moment" if name == "sfsample" else end
    found = f"process {pid} ({name}) traces it already, and there can be only one tracer"
    return Gate("tracer", "fail", found, Remedy(remedy))


def _call(own: SelfCredentials, call: str) -> Gate:
    if call in own.refused_calls:
        return Gate(f"{call}(2)", "fail", f"a seccomp filter on sfsample refuses {call}(2)", _SECCOMP)
    return Gate(f"{call}(2)", "pass", "the kernel accepts the call")


def _security_module(own: SelfCredentials, target: TargetCredentials) -> Gate:
    name = "security module"
    if own.label == target.label:
        return Gate(name, "pass", f"both run as {own.label}" if own.label else "none restricts the processes")
    theirs, ours = target.label or "unconfined", own.label or "unconfined"
    found = f"it runs as {theirs}, you as {ours}: the security module may forbid tracing"
    return Gate(name, "unknown", found, Remedy(
        'dmesg or the audit log shows a refusal (apparmor="DENIED", avc: denied)',
        docker="--security-opt apparmor=unconfined",
        kubernetes="securityContext.appArmorProfile.type: Unconfined"))  # fmt: skip
