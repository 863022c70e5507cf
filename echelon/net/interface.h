// The network interface behind an address of this machine.
#pragma once

#include <filesystem>
#include <string>

namespace echelon {

// "eth0, 10000 Mbit/s", or the name alone if the system does not know the speed; "" if no interface
// has the address. For messages, and to tell links apart.
std::string describe_interface(const std::string& numeric_address,
                               const std::filesystem::path& devices = "/sys/class/net");

}  // namespace echelon
