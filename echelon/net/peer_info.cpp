#include "echelon/net/peer_info.h"

#include <fmt/format.h>

#include <span>

#include "echelon/net/frame.h"

namespace echelon {

std::string encode(const PeerInfo& info) {
  const Frame frame = FrameWriter()
                          .text(info.host)
                          .text(info.machine)
                          .text(info.kernel)
                          .text(cpu_text(info.cpus))
                          .number(info.quota)
                          .text(info.options)
                          .text(info.address.host)
                          .number(info.address.port)
                          .text(info.local)
                          .number(info.process)
                          .number(info.job)
                          .frame(0);
  return {reinterpret_cast<const char*>(frame.payload.data()), frame.payload.size()};
}

PeerInfo decode_peer_info(const std::string& text, int rank) {
  Frame frame;
  const auto bytes = std::as_bytes(std::span(text));
  frame.payload.assign(bytes.begin(), bytes.end());
  FrameReader reader(frame, fmt::format("the peer info of rank {}", rank));
  PeerInfo info;
  info.host = reader.text(256);
  info.machine = reader.text(256);
  info.kernel = reader.text(256);
  info.cpus = parse_cpus(reader.text(8192));
  info.quota = reader.number_at_most(1 << 20);
  info.options = reader.text(256);
  info.address.host = reader.text(256);
  info.address.port = std::uint16_t(reader.number_at_most(65535));
  info.local = reader.text(100);
  info.process = reader.number();
  info.job = reader.number();
  reader.end();
  return info;
}

}  // namespace echelon
