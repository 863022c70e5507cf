// The machine that this process runs on: its identity, and the cores that this process may use.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace echelon {

// Equal for two processes exactly if they can reach each other through abstract Unix sockets (and
// so pass descriptors): same kernel and same network namespace. A short text; ECHELON_HOST_ID
// replaces it, to simulate several hosts on one machine.
std::string host_id();

// Equal for processes that share this machine's cores, whatever namespaces they are in.
std::string machine_id();

// This machine's name with its domain where it has one:
// "train-2.workers.default.svc.cluster.local".
std::string full_host_name();

using CpuList = std::vector<int>;  // ascending

// To and from the kernel's notation, "0-3,8"; anything else in the text is skipped.
std::string cpu_text(const CpuList& cpus);
CpuList parse_cpus(const std::string& text);

// The CPUs that the calling thread may run on.
CpuList allowed_cpus();

// How many threads this process can run at once: its allowed CPUs, or fewer where its control group
// (v2) or a parent has a quota in cpu.max. Rounded down, at least 1.
int cores(const std::filesystem::path& cgroups = "/sys/fs/cgroup",
          const std::filesystem::path& own_group = "/proc/self/cgroup");
// The quota alone, in whole cores; 0 if there is none.
int core_quota(const std::filesystem::path& cgroups = "/sys/fs/cgroup",
               const std::filesystem::path& own_group = "/proc/self/cgroup");

// The allowed CPUs by NUMA node, without empty nodes. A single list if the system does not report
// nodes.
std::vector<CpuList> numa_nodes(const CpuList& allowed = allowed_cpus(),
                                const std::filesystem::path& folder = "/sys/devices/system/node");

// Restricts the calling thread, and threads and processes that it starts later, to these CPUs.
// Throws InvalidArgument (an empty list, a CPU that does not exist) or Error.
void bind_to_cpus(const CpuList& cpus);

}  // namespace echelon
