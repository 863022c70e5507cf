// The machine below this process: which one it is, and which of its cores are ours.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace echelon {

// The same for two processes exactly when they can reach each other through abstract Unix sockets
// (and so pass descriptors): one kernel and one network namespace. A short text; ECHELON_HOST_ID
// replaces it, to try on one machine what happens on several.
std::string host_id();

// The same for processes that share this machine's cores, whatever namespaces they are in.
std::string machine_id();

// This machine's name with its domain where it has one:
// "train-2.workers.default.svc.cluster.local".
std::string full_host_name();

using CpuList = std::vector<int>;  // ascending

// "0-3,8", as the kernel writes it, and back; what it never writes is skipped.
std::string cpu_text(const CpuList& cpus);
CpuList parse_cpus(const std::string& text);

// What the scheduler lets the calling thread run on.
CpuList allowed_cpus();

// How many threads this process can run at once: its allowed CPUs, or fewer where its control group
// (v2) or one above has a quota in cpu.max. A part of a core does not count; at least 1.
int cores(const std::filesystem::path& cgroups = "/sys/fs/cgroup",
          const std::filesystem::path& own_group = "/proc/self/cgroup");
// The quota alone, in whole cores; 0 where there is none.
int core_quota(const std::filesystem::path& cgroups = "/sys/fs/cgroup",
               const std::filesystem::path& own_group = "/proc/self/cgroup");

// The allowed CPUs by NUMA node, without nodes that have none. One list of all where the system
// does not say.
std::vector<CpuList> numa_nodes(const CpuList& allowed = allowed_cpus(),
                                const std::filesystem::path& folder = "/sys/devices/system/node");

// The calling thread, and what it starts from now on, runs on these CPUs only. Throws
// InvalidArgument (an empty list, a CPU that is not there) or Error.
void bind_to_cpus(const CpuList& cpus);

}  // namespace echelon
