"""Runs programs that a model wrote, and judges them by tests that they cannot reach.

Two fresh interpreters (``-I -S``: the standard library alone, no site packages) with an empty environment, each shut in
on its own: the *solver* holds the program, the *tester* holds the tests. Arguments and results travel between them as
plain data. So a program passes only if the tests ran to their end on values that it returned: an early exit, a patched
``assert``, a walk over frames, an object that equals everything, or a forged message of success changes nothing, since
expected values and the verdict are never in the program's process.

Covered at every level: wall clock and CPU time, address space of each process and resident memory of all, number of
processes, size of files and of output, stdin, environment; the working directory is a temporary folder and is removed;
all processes are ended at the end, detached ones too. As root, programs run under a user id of their own.

Levels, strongest first (:class:`harness.sandbox.base.Level`; :func:`harness.sandbox.level.best` finds what works here):

``isolated``
    Own PID, network, mount, IPC and (not as root) user namespaces. No network, no other process is visible. The file
    tree is the standard library and shared libraries, read-only, and one writable folder of limited size in memory.
``namespaced``
    The same without a file tree of its own: files are protected by their permissions only.
``limited``
    No namespaces (macOS, or a kernel that forbids them): the network and every file that the user may read or write
    are within reach, and a process that detaches itself, kills its supervisor and renames itself survives.

Not covered at any level: bugs of the kernel, side channels, use of the CPU within the limits, the time that a program
spends before its first answer if the machine is busy (its clock starts when its interpreter is up). This is a boundary
against what models write, not against a paid adversary. Tests that hand over or expect more than plain data (functions,
own classes) are refused as ``unsupported``.
"""
