// The hosts in an mpirun command line: which of them answer, and the command without those that do
// not.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::launching {

using Words = std::vector<std::string>;

/// The hosts in --host (-host, -H), or else in --hostfile (-hostfile, --machinefile, -machinefile,
/// --default-hostfile, -default-hostfile), of an mpirun or mpiexec command, each once, in their
/// order. Local.
///
/// Empty for other commands, for commands of several programs (":"), for several hostfiles, and
/// where the file cannot be read. Options behind a word `lockstep` before a subcommand, or
/// behind --run-dir, are the program's.
Words hosts_of(const Words& command);

/// `command` without the hosts `gone`, and with fewer ranks (-n, -np, -c, --n, --np) where the
/// slots of the others are fewer than its ranks; more ranks than slots are reduced in proportion. A
/// host without a number of slots has one. Local.
///
/// What is left of a hostfile is written to `hostfile`.
/// Errors   throws OutputError if that fails.
Words without_hosts(const Words& command, const Words& gone, const std::filesystem::path& hostfile);

/// The number of ranks that -n, -np, -c, --n or --np of a command asks for; empty if it does not.
/// Pure.
std::string ranks_in(const Words& command);

/// The folder in which a launcher starts its ranks: the last value of mpirun's --wdir (-wdir, --wd,
/// -wd), of srun's --chdir (-D). Empty if a command has none. Local.
std::string folder_of_ranks(const Words& command);

/// The program with which mpirun starts its daemons on other hosts, and its arguments: of --mca
/// plm_rsh_agent, of the variables for it, or ssh or rsh. Empty if none is found. Local.
Words remote_shell(const Words& command);

/// Those of `hosts` on which `shell` does not run `true` within `seconds`; all hosts are asked at
/// the same time. This host answers. Local.
Words silent_hosts(const Words& hosts, const Words& shell, double seconds);

}  // namespace lockstep::launching
