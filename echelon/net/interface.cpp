#include "echelon/net/interface.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <array>
#include <fstream>
#include <memory>

namespace echelon {
namespace {

std::string numeric(const sockaddr& address) {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  const void* bytes = nullptr;
  if (address.sa_family == AF_INET)
    bytes = &reinterpret_cast<const sockaddr_in&>(address).sin_addr;
  else if (address.sa_family == AF_INET6)
    bytes = &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  if (bytes == nullptr || !inet_ntop(address.sa_family, bytes, text.data(), text.size())) return {};
  return text.data();
}

}  // namespace

std::string describe_interface(const std::string& numeric_address,
                               const std::filesystem::path& devices) {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> all(first, freeifaddrs);
  // Without the scope.
  const std::string wanted = numeric_address.substr(0, numeric_address.find('%'));
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || numeric(*one->ifa_addr) != wanted) continue;
    long mbits = -1;  // the kernel's value if the speed is unknown
    std::ifstream(devices / one->ifa_name / "speed") >> mbits;
    return mbits > 0 ? fmt::format("{}, {} Mbit/s", one->ifa_name, mbits) : one->ifa_name;
  }
  return {};
}

}  // namespace echelon
