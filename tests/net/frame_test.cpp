#include "echelon/net/frame.h"

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "tests/base/thrown.h"
#include "tests/net/connection.h"

namespace echelon {
namespace {

using Bytes = std::vector<std::byte>;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Frame a_frame() {
  return FrameWriter().number(7).text("seven").number(1ull << 63).text("").frame(42);
}

Bytes bytes(std::string_view text) {
  const auto span = bytes_of(text);
  return {span.begin(), span.end()};
}

Bytes header(std::string_view magic, int kind, std::string_view zeros, std::uint32_t length) {
  auto all = bytes(magic);
  all.push_back(std::byte(kind));
  for (const char letter : zeros) all.push_back(std::byte(letter));
  for (int i = 0; i < 4; ++i) all.push_back(std::byte(length >> (8 * i)));
  return all;
}
constexpr std::string_view three_zeros("\0\0\0", 3);

TEST(Frame, IsWrittenAsItsDocumentSays) {
  const auto encoded = encode(FrameWriter().number(0x0102030405060708).text("hi").frame(9));
  EXPECT_EQ(text_of(encoded), std::string("ECH1\x09\0\0\0\x0e\0\0\0"
                                          "\x08\x07\x06\x05\x04\x03\x02\x01"
                                          "\x02\0\0\0hi",
                                          26));
}

TEST(Frame, GivesBackWhatWasPutIn) {
  const auto frame = a_frame();
  FrameReader reader(frame, "rank 1");
  EXPECT_EQ(frame.kind, 42);
  EXPECT_EQ(reader.number(), 7u);
  EXPECT_EQ(reader.text(), "seven");
  EXPECT_EQ(reader.number_at_most(1ull << 63), 1ull << 63);
  EXPECT_EQ(reader.text(), "");
  reader.end();
}

TEST(Frame, CarriesNumbersAndTextsOfEverySize) {
  const std::string all_bytes("\0\x01\xff text", 8);
  const auto frame = FrameWriter()
                         .number(0)
                         .number(std::numeric_limits<std::uint64_t>::max())
                         .text(all_bytes)
                         .frame(255);
  FrameReader reader(frame, "rank 1");
  EXPECT_EQ(reader.number(), 0u);
  EXPECT_EQ(reader.number(), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(reader.text(), all_bytes);
  reader.end();
}

TEST(Frame, RefusesANumberAboveItsLimit) {
  const auto frame = FrameWriter().number(1).number(9).frame(1);
  FrameReader reader(frame, "rank 1");
  EXPECT_EQ(reader.number_at_most(1), 1u);
  EXPECT_EQ(thrown<Corrupt>([&] { reader.number_at_most(8); }),
            "a frame from rank 1 is broken at offset 20: the number 9 where at most 8 is allowed");
}

TEST(Frame, RefusesATextAboveItsLimit) {
  const auto frame = FrameWriter().text("abc").frame(1);
  EXPECT_EQ(FrameReader(frame, "rank 1").text(3), "abc");
  EXPECT_EQ(
      thrown<Corrupt>([&] { FrameReader(frame, "rank 1").text(2); }),
      "a frame from rank 1 is broken at offset 12: a text of 3 bytes where at most 2 are allowed");
}

TEST(Frame, RefusesATextThatSaysItIsLongerThanTheFrame) {
  Frame frame = FrameWriter().text("abc").frame(1);
  frame.payload[0] = std::byte{4};
  EXPECT_EQ(thrown<Corrupt>([&] { FrameReader(frame, "rank 1").text(); }),
            "a frame from rank 1 is broken at offset 16: a text of 4 bytes is due and 3 are left");
  for (std::size_t i = 0; i < 4; ++i) frame.payload[i] = std::byte{0xff};
  EXPECT_EQ(
      outcome([&] { FrameReader(frame, "rank 1").text(std::numeric_limits<std::size_t>::max()); }),
      "Corrupt");
}

TEST(Frame, RefusesEveryTruncatedPayload) {
  const auto whole = a_frame();
  for (std::size_t size = 0; size < whole.payload.size(); ++size) {
    Frame part = whole;
    part.payload.resize(size);
    EXPECT_EQ(outcome([&] {
                FrameReader reader(part, "rank 1");
                reader.number();
                reader.text();
                reader.number();
                reader.text();
              }),
              "Corrupt")
        << size << " bytes";
  }
}

TEST(Frame, RefusesBytesThatAreLeftOver) {
  const auto frame = FrameWriter().number(1).text("abc").frame(1);
  FrameReader reader(frame, "rank 1");
  reader.number();
  EXPECT_EQ(
      thrown<Corrupt>([&] { reader.end(); }),
      "a frame from rank 1 is broken at offset 20: 7 bytes are left over after the last field");
}

TEST(Frame, HasALargestPayload) {
  const std::string most(Frame::max_payload - 4, 'x');
  EXPECT_EQ(encode(FrameWriter().text(most).frame(1)).size(),
            Frame::header_size + Frame::max_payload);
  EXPECT_EQ(outcome([&] { FrameWriter().text(most).number(1).frame(1); }), "InvalidArgument");
  EXPECT_EQ(outcome([&] { FrameWriter().text(std::string(Frame::max_payload + 1, 'x')); }),
            "InvalidArgument");
  EXPECT_EQ(outcome([] { encode({.kind = 1, .payload = Bytes(Frame::max_payload + 1)}); }),
            "InvalidArgument");
}

TEST(FrameWriter, StartsAnewAfterEachFrame) {
  FrameWriter writer;
  EXPECT_EQ(writer.number(1).frame(1).payload.size(), 8u);
  EXPECT_EQ(writer.frame(2).payload.size(), 0u);
}

TEST(FrameParser, GivesFramesHoweverTheirBytesCome) {
  Bytes all;
  for (int i = 0; i < 20; ++i) {
    const auto encoded = encode(FrameWriter()
                                    .number(static_cast<std::uint64_t>(i))
                                    .text(std::string(static_cast<std::size_t>(i) * 7, 'x'))
                                    .frame(static_cast<std::uint8_t>(i)));
    all.insert(all.end(), encoded.begin(), encoded.end());
  }
  for (const std::size_t step : {std::size_t{1}, std::size_t{11}, std::size_t{12}, std::size_t{13},
                                 std::size_t{500}, all.size()}) {
    FrameParser parser("rank 1");
    int count = 0;
    for (std::size_t at = 0; at < all.size(); at += step) {
      parser.feed(std::span(all).subspan(at, std::min(step, all.size() - at)));
      while (const auto frame = parser.next()) {
        EXPECT_EQ(frame->kind, count);
        FrameReader reader(*frame, "rank 1");
        EXPECT_EQ(reader.number(), static_cast<std::uint64_t>(count));
        EXPECT_EQ(reader.text().size(), static_cast<std::size_t>(count) * 7);
        reader.end();
        ++count;
      }
    }
    EXPECT_EQ(count, 20) << "in steps of " << step;
  }
}

TEST(FrameParser, WaitsForTheRestOfEveryTruncation) {
  const auto encoded = encode(a_frame());
  for (std::size_t size = 0; size < encoded.size(); ++size) {
    FrameParser parser("rank 1");
    parser.feed(std::span(encoded).first(size));
    EXPECT_FALSE(parser.next()) << size << " bytes";
    parser.feed(std::span(encoded).subspan(size));
    const auto frame = parser.next();
    ASSERT_TRUE(frame) << size << " bytes first";
    EXPECT_TRUE(frame->payload == a_frame().payload);
    EXPECT_FALSE(parser.next());
  }
}

std::string refusal(const Bytes& all) {
  FrameParser parser("rank 1");
  parser.feed(all);
  return thrown<Corrupt>([&] { parser.next(); });
}

TEST(FrameParser, RefusesAHeaderThatBreaksARule) {
  for (std::size_t i = 0; i < 4; ++i) {
    auto all = encode(a_frame());
    all[i] ^= std::byte{0x20};
    EXPECT_EQ(refusal(all),
              "a frame from rank 1 is broken at offset 0: it does not start with ECH1");
  }
  for (std::size_t i = 5; i < 8; ++i) {
    auto all = encode(a_frame());
    all[i] = std::byte{1};
    EXPECT_EQ(refusal(all), "a frame from rank 1 is broken at offset " + std::to_string(i) +
                                ": this byte must be zero");
  }
}

TEST(FrameParser, RefusesALengthThatIsTooLargeAsSoonAsItIsSeen) {
  for (const std::uint32_t length :
       {std::uint32_t{Frame::max_payload} + 1, 0x80000000u, 0xffffffffu}) {
    EXPECT_EQ(refusal(header("ECH1", 1, three_zeros, length)),
              "a frame from rank 1 is broken at offset 8: a payload of " + std::to_string(length) +
                  " bytes; at most 1048576 are allowed");
  }
  FrameParser parser("rank 1");
  parser.feed(header("ECH1", 1, three_zeros, Frame::max_payload));
  EXPECT_FALSE(parser.next()) << "the largest allowed is waited for";
}

TEST(FrameParser, SaysTheSameAgainAfterABrokenFrame) {
  FrameParser parser("rank 1");
  parser.feed(bytes("GET / HTTP/1.1\r\n"));
  EXPECT_EQ(outcome([&] { parser.next(); }), "Corrupt");
  parser.feed(encode(a_frame()));
  EXPECT_EQ(outcome([&] { parser.next(); }), "Corrupt");
}

TEST(FrameParser, TakesNoGarbageForAFrame) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    Bytes garbage(12 + random() % 100);
    for (auto& byte : garbage) byte = std::byte(random());
    EXPECT_TRUE(has(refusal(garbage), "broken at offset"));
  }
}

TEST(Frame, IsSentOverAStream) {
  const auto [one, other] = plain_streams(local_sockets());
  write_frame(*one, a_frame(), in_time());
  write_frame(*one, FrameWriter().frame(1), in_time());
  const auto frame = read_frame(*other, in_time());
  EXPECT_EQ(frame.kind, 42);
  EXPECT_TRUE(frame.payload == a_frame().payload);
  EXPECT_EQ(read_frame(*other, in_time()).kind, 1);
}

TEST(Frame, IsRefusedFromAStreamBeforeItsPayloadIsRead) {
  const auto [one, other] = plain_streams(local_sockets());
  one->write(header("ECH1", 1, three_zeros, 0xffffffff), in_time());
  const auto said = thrown<Corrupt>([&] { read_frame(*other, in_time()); });
  EXPECT_TRUE(has(said, "a frame from the connecting side is broken at offset 8")) << said;
}

TEST(Frame, TimesOutOrIsLostWhenAStreamGivesAPart) {
  auto [one, other] = plain_streams(local_sockets());
  const auto encoded = encode(a_frame());
  one->write(std::span(encoded).first(15), in_time());
  EXPECT_EQ(outcome([&] { read_frame(*other, too_soon()); }), "Timeout");
  one->write(std::span(encoded).first(15), in_time());
  one.reset();
  EXPECT_EQ(outcome([&] { read_frame(*other, in_time()); }), "PeerLost");
}

}  // namespace
}  // namespace echelon
