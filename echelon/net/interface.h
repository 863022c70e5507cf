// The network interface behind an address of this machine.
#pragma once

#include <filesystem>
#include <string>

namespace echelon {

// "eth0, 10000 Mbit/s", or the name alone where the system does not know the speed; "" for an
// address that no interface has. For people, and to tell one link from another.
std::string describe_interface(const std::string& numeric_address,
                               const std::filesystem::path& devices = "/sys/class/net");

}  // namespace echelon
