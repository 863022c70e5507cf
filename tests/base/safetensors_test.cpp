#include "echelon/base/safetensors.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/base/random.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon::safetensors {
namespace {

// ---- files made by hand

std::string length_of(std::uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> 8 * i & 0xff);
  return bytes;
}

std::string file_of(const std::string& header, const std::string& data = "") {
  return length_of(header.size()) + header + data;
}

Header parse(const std::string& file) {
  return parse_header(std::as_bytes(std::span(file.data(), file.size())), file.size(), "f");
}

std::string refusal(const std::string& header, const std::string& data = "") {
  return thrown<Corrupt>([&] { parse(file_of(header, data)); });
}

// One tensor in the middle of a header that is otherwise right.
std::string refusal_of_tensor(const std::string& fields, const std::string& data = "") {
  return refusal("{\"t\":{" + fields + "}}", data);
}

const std::string good_header =
    R"({"__metadata__":{"format":"pt","step":"12"},)"
    R"("b":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]},)"
    R"("a\u00e4\"":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},)"
    R"("empty":{"dtype":"I64","shape":[0,7],"data_offsets":[28,28]},)"
    R"("scalar":{"data_offsets":[28,29],"shape":[],"dtype":"BOOL"}}   )";
const std::string good_data(29, 'd');

TEST(Safetensors, ReadsAGoodHeader) {
  const auto header = parse(file_of(good_header, good_data));
  EXPECT_EQ(header.data_offset, 8 + good_header.size());
  EXPECT_EQ(header.metadata, (Metadata{{"format", "pt"}, {"step", "12"}}));
  ASSERT_EQ(header.entries.size(), 4U);
  const auto& [a, b, empty, scalar] =
      std::tie(header.entries[0], header.entries[1], header.entries[2], header.entries[3]);
  EXPECT_EQ(a.name, "a\u00e4\"");
  EXPECT_EQ(a.dtype, "BF16");
  EXPECT_EQ(a.begin, 0U);
  EXPECT_EQ(a.end, 4U);
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(b.begin, 4U);
  EXPECT_EQ(b.end, 28U);
  EXPECT_EQ(empty.name, "empty");
  EXPECT_EQ(empty.begin, 28U);
  EXPECT_EQ(empty.end, 28U);
  EXPECT_EQ(scalar.name, "scalar");
  EXPECT_TRUE(scalar.shape.empty());
}

TEST(Safetensors, ReadsAFileWithoutTensors) {
  EXPECT_TRUE(parse(file_of("{}")).entries.empty());
  EXPECT_TRUE(parse(file_of("{\"__metadata__\":{}}   ")).metadata.empty());
}

TEST(Safetensors, KnowsTheTypesOfTheFormat) {
  for (const auto* one : {"BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3"})
    EXPECT_EQ(element_size(one), 1U) << one;
  for (const auto* two : {"I16", "U16", "F16", "BF16"}) EXPECT_EQ(element_size(two), 2U) << two;
  for (const auto* four : {"I32", "U32", "F32"}) EXPECT_EQ(element_size(four), 4U) << four;
  for (const auto* eight : {"I64", "U64", "F64", "C64"})
    EXPECT_EQ(element_size(eight), 8U) << eight;
  for (const auto* none : {"", "f32", "F33", "F32 ", "F4", "__metadata__"})
    EXPECT_EQ(element_size(none), 0U) << none;
}

// ---- what breaks the rules

TEST(Safetensors, RejectsAFileTooShortForItsHeader) {
  EXPECT_EQ(thrown<Corrupt>([] { parse(""); }),
            "f: a safetensors file begins with 8 bytes of length, but this has 0 bytes");
  EXPECT_EQ(thrown<Corrupt>([] { parse("1234567"); }),
            "f: a safetensors file begins with 8 bytes of length, but this has 7 bytes");
  EXPECT_EQ(thrown<Corrupt>([] { parse(length_of(3) + "{}"); }),
            "f: the header has 3 bytes, but the file ends after 2");
  EXPECT_EQ(thrown<Corrupt>([] { parse(length_of(100'000'000) + "{}"); }),
            "f: the header has 100000000 bytes, but the file ends after 2");
}

TEST(Safetensors, RejectsAHeaderOverTheLimit) {
  EXPECT_EQ(thrown<Corrupt>([] { parse(length_of(100'000'001) + "{}"); }),
            "f: the header would have 100000001 bytes; safetensors allows 100000000");
  EXPECT_EQ(thrown<Corrupt>([] { parse(length_of(~std::uint64_t{0}) + "{}"); }),
            "f: the header would have 18446744073709551615 bytes; safetensors allows 100000000");
}

TEST(Safetensors, RejectsAHeaderThatIsNoObject) {
  EXPECT_EQ(refusal(""), "f: the header does not begin with '{'");
  EXPECT_EQ(refusal("[]"), "f: the header does not begin with '{'");
  EXPECT_EQ(refusal(" {}"), "f: the header does not begin with '{'");
  EXPECT_EQ(refusal("\xef\xbb\xbf{}"), "f: the header does not begin with '{'");
}

TEST(Safetensors, RejectsWhatIsNotJson) {
  EXPECT_EQ(refusal("{\"a\"}"), "f: the header is not JSON at byte 13");
  EXPECT_TRUE(refusal("{,}").starts_with("f: the header is not JSON"));
  EXPECT_TRUE(refusal("{}{}").starts_with("f: the header is not JSON"));
  EXPECT_TRUE(refusal("{} /* no */ {}").starts_with("f: the header is not JSON"));
  EXPECT_TRUE(
      refusal("{\"__metadata__\":{\"a\":\"\xff\"}}").starts_with("f: the header is not JSON"));
  EXPECT_TRUE(
      refusal("{\"__metadata__\":{\"a\":\"\\ud800\"}}").starts_with("f: the header is not JSON"));
  EXPECT_TRUE(
      refusal("{\"__metadata__\":{\"a\":\"\n\"}}").starts_with("f: the header is not JSON"));
}

TEST(Safetensors, RejectsAnythingButSpacesAfterTheHeader) {
  EXPECT_EQ(refusal("{}\n"), "f: the header does not end with '}' at byte 10");
  EXPECT_EQ(refusal("{} \t "), "f: the header does not end with '}' at byte 11");
  EXPECT_EQ(refusal("{}x"), "f: the header does not end with '}' at byte 10");
  EXPECT_EQ(refusal(std::string("{}\0", 3)), "f: the header does not end with '}' at byte 10");
  EXPECT_EQ(refusal(std::string("{}\0{}", 5)), "f: the header has a zero byte at byte 10");
}

TEST(Safetensors, RejectsDuplicatesAtEveryLevel) {
  const std::string t = R"("t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  EXPECT_EQ(refusal("{" + t + "," + t + "}"), "f: the key \"t\" comes twice");
  EXPECT_EQ(refusal(R"({"__metadata__":{},"__metadata__":{}})"),
            "f: the key \"__metadata__\" comes twice");
  EXPECT_EQ(refusal(R"({"__metadata__":{"k":"1","k":"1"}})"),
            "f: the key \"k\" of __metadata__ comes twice");
  EXPECT_EQ(refusal(R"({"__metadata__":{"k":"1","\u006b":"1"}})"),
            "f: the key \"k\" of __metadata__ comes twice");
  EXPECT_EQ(refusal_of_tensor(R"("dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0])"),
            "f: tensor \"t\" has dtype twice");
  EXPECT_EQ(refusal_of_tensor(R"("dtype":"U8","shape":[0],"shape":[0],"data_offsets":[0,0])"),
            "f: tensor \"t\" has shape twice");
  EXPECT_EQ(
      refusal_of_tensor(R"("dtype":"U8","shape":[0],"data_offsets":[0,0],"data_offsets":[0,0])"),
      "f: tensor \"t\" has data_offsets twice");
}

TEST(Safetensors, RejectsMetadataThatMapsStringsToAnythingElse) {
  EXPECT_EQ(refusal(R"({"__metadata__":"x"})"),
            "f: __metadata__ is a string where it should be an object");
  EXPECT_EQ(refusal(R"({"__metadata__":[]})"),
            "f: __metadata__ is an array where it should be an object");
  for (const auto& [value, name] : {std::pair{"1", "a number"},
                                    {"-1", "a negative number"},
                                    {"null", "null"},
                                    {"true", "a boolean"},
                                    {"1.5", "a number that is no integer of 63 bits"},
                                    {"[]", "an array"},
                                    {"{}", "an object"}}) {
    EXPECT_EQ(refusal(std::string(R"({"__metadata__":{"k":)") + value + "}}"),
              std::string("f: the value of \"k\" in __metadata__ is ") + name +
                  " where only strings are allowed");
  }
}

TEST(Safetensors, RejectsTensorsThatAreNoObjects) {
  EXPECT_EQ(refusal(R"({"t":[]})"), "f: tensor \"t\" is an array where it should be an object");
  EXPECT_EQ(refusal(R"({"t":"F32"})"), "f: tensor \"t\" is a string where it should be an object");
  EXPECT_EQ(refusal(R"({"t":null})"), "f: tensor \"t\" is null where it should be an object");
}

TEST(Safetensors, RejectsMissingAndUnknownFields) {
  EXPECT_EQ(refusal_of_tensor(""), "f: tensor \"t\" lacks its dtype");
  EXPECT_EQ(refusal_of_tensor(R"("dtype":"U8","data_offsets":[0,0])"),
            "f: tensor \"t\" lacks its shape");
  EXPECT_EQ(refusal_of_tensor(R"("dtype":"U8","shape":[0])"),
            "f: tensor \"t\" lacks its data_offsets");
  EXPECT_EQ(refusal_of_tensor(R"("dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1)"),
            "f: tensor \"t\" has the unknown key \"x\"");
  EXPECT_EQ(refusal_of_tensor(R"("dtype":"F33","shape":[0],"data_offsets":[0,0])"),
            "f: tensor \"t\" has the unknown type \"F33\"");
}

TEST(Safetensors, DoesNotTakeOneTensorsFieldsForAnothers) {
  EXPECT_EQ(refusal(R"({"s":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"t":{}})"),
            "f: tensor \"t\" lacks its dtype");
}

TEST(Safetensors, RejectsShapesAndOffsetsThatAreNotLists) {
  const auto shape = [](const std::string& value) {
    return refusal_of_tensor(R"("dtype":"U8","data_offsets":[0,0],"shape":)" + value);
  };
  const std::string shape_rule = " where it should be a list of integers of at least 0";
  EXPECT_EQ(shape("3"), "f: the shape of tensor \"t\" has a number" + shape_rule);
  EXPECT_EQ(shape("{}"), "f: the shape of tensor \"t\" has an object" + shape_rule);
  EXPECT_EQ(shape("[[1]]"), "f: the shape of tensor \"t\" has an array" + shape_rule);
  EXPECT_EQ(shape("[-1]"), "f: the shape of tensor \"t\" has a negative number" + shape_rule);
  EXPECT_EQ(shape("[1.0]"),
            "f: the shape of tensor \"t\" has a number that is no integer of 63 bits" + shape_rule);
  EXPECT_EQ(shape("[\"1\"]"), "f: the shape of tensor \"t\" has a string" + shape_rule);
  const auto offsets = [](const std::string& value) {
    return refusal_of_tensor(R"("dtype":"U8","shape":[0],"data_offsets":)" + value);
  };
  EXPECT_EQ(offsets("[]"), "f: tensor \"t\" has fewer than two data_offsets");
  EXPECT_EQ(offsets("[0]"), "f: tensor \"t\" has fewer than two data_offsets");
  EXPECT_EQ(offsets("[0,0,0]"), "f: tensor \"t\" has more than two data_offsets");
  EXPECT_EQ(
      offsets("\"0\""),
      "f: data_offsets of tensor \"t\" has a string where it should be two integers of at least 0");
}

TEST(Safetensors, RejectsNumbersThatDoNotFit) {
  EXPECT_EQ(refusal_of_tensor(R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,0])"),
            "f: tensor \"t\" has the number 9223372036854775808, which does not fit 63 bits");
  EXPECT_EQ(
      refusal_of_tensor(R"("dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,0])"),
      "f: the shape of tensor \"t\" has a number that is no integer of 63 bits where it should be "
      "a list of "
      "integers of at least 0");
  const std::string overflow =
      "f: tensor \"t\" at bytes 0 to 0 has a shape whose product does not fit 63 bits";
  EXPECT_EQ(
      refusal_of_tensor(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])"),
      overflow);
  EXPECT_EQ(
      refusal_of_tensor(R"("dtype":"F64","shape":[1152921504606846976],"data_offsets":[0,0])"),
      overflow);
  EXPECT_EQ(
      refusal_of_tensor(R"("dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0])"),
      overflow);
}

TEST(Safetensors, RejectsAShapeThatDisagreesWithItsRange) {
  EXPECT_EQ(refusal_of_tensor(R"("dtype":"F32","shape":[2,3],"data_offsets":[0,20])",
                              std::string(20, 'd')),
            "f: tensor \"t\" at bytes 0 to 20 should have 24 bytes by its shape [2, 3] of F32");
  EXPECT_EQ(refusal_of_tensor(R"("dtype":"U8","shape":[3],"data_offsets":[3,0])", "ddd"),
            "f: tensor \"t\" at bytes 3 to 0 ends before it begins");
}

std::string two_tensors(int a_begin, int a_end, int b_begin, int b_end) {
  const auto tensor = [](const std::string& name, int begin, int end) {
    return "\"" + name + R"(":{"dtype":"U8","shape":[)" + std::to_string(end - begin) +
           R"(],"data_offsets":[)" + std::to_string(begin) + "," + std::to_string(end) + "]}";
  };
  return "{" + tensor("a", a_begin, a_end) + "," + tensor("b", b_begin, b_end) + "}";
}

TEST(Safetensors, RejectsOverlappingRanges) {
  EXPECT_EQ(refusal(two_tensors(0, 4, 3, 8), std::string(8, 'd')),
            "f: tensor \"b\" at bytes 3 to 8 overlaps the one before it, which ends at 4");
  EXPECT_EQ(refusal(two_tensors(0, 4, 0, 4), std::string(4, 'd')),
            "f: tensor \"b\" at bytes 0 to 4 overlaps the one before it, which ends at 4");
  EXPECT_EQ(refusal(two_tensors(0, 8, 4, 4), std::string(8, 'd')),
            "f: tensor \"b\" at bytes 4 to 4 overlaps the one before it, which ends at 8");
}

TEST(Safetensors, TakesAnEmptyTensorWhereAnotherBegins) {
  for (const auto& header :
       {two_tensors(0, 4, 0, 0), two_tensors(0, 0, 0, 4), two_tensors(0, 4, 4, 4)}) {
    EXPECT_EQ(parse(file_of(header, "data")).entries.size(), 2U) << header;
  }
}

TEST(Safetensors, RejectsHoles) {
  EXPECT_EQ(refusal(two_tensors(0, 4, 5, 8), std::string(8, 'd')),
            "f: tensor \"b\" at bytes 5 to 8 leaves a hole after byte 4");
  EXPECT_EQ(refusal(two_tensors(1, 4, 4, 8), std::string(8, 'd')),
            "f: tensor \"a\" at bytes 1 to 4 leaves a hole after byte 0");
}

TEST(Safetensors, RejectsDataOfAnotherSize) {
  EXPECT_EQ(refusal(two_tensors(0, 4, 4, 8), std::string(7, 'd')),
            "f: the tensors end at byte 8 of the data, but the file has 7 bytes of data");
  EXPECT_EQ(refusal(two_tensors(0, 4, 4, 8), std::string(9, 'd')),
            "f: the tensors end at byte 8 of the data, but the file has 9 bytes of data");
  EXPECT_EQ(refusal("{}", "d"),
            "f: the tensors end at byte 0 of the data, but the file has 1 bytes of data");
}

TEST(Safetensors, RejectsDeepNestingAtOnce) {
  const std::string deep(5'000'000, '[');
  const std::string objects = [] {
    std::string text;
    for (int i = 0; i < 500'000; ++i) text += "{\"a\":";
    return text;
  }();
  EXPECT_EQ(refusal("{\"t\":" + deep + "}"),
            "f: tensor \"t\" is an array where it should be an object");
  EXPECT_NE(refusal(R"({"t":{"shape":)" + deep + "}"), "(nothing was thrown)");
  EXPECT_NE(refusal(R"({"__metadata__":)" + objects + "}"), "(nothing was thrown)");
  EXPECT_NE(refusal(objects + "}"), "(nothing was thrown)");
}

TEST(Safetensors, ShowsHostileNamesHarmlessly) {
  const auto message = refusal("{\"\\u001b[31m" + std::string(1000, 'x') + "\":1}");
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
  EXPECT_LT(message.size(), 200U);
}

// ---- hostile bytes: whatever comes, it parses or is Corrupt

// Whether it parsed; fails the test on any other error, or when what parsed breaks a promise.
bool parses(const std::string& file) {
  try {
    const auto header = parse(file);
    std::uint64_t covered = 0;
    for (const auto& entry : header.entries) {
      EXPECT_EQ(entry.begin, covered);
      covered = entry.end;
    }
    EXPECT_EQ(header.data_offset + covered, file.size());
    return true;
  } catch (const Corrupt&) {
    return false;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "not Corrupt, but: " << error.what();
    return false;
  }
}

TEST(Safetensors, RejectsEveryTruncation) {
  const auto good = file_of(good_header, good_data);
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(parses(good.substr(0, size))) << size;
  }
  EXPECT_TRUE(parses(good));
  EXPECT_FALSE(parses(good + "d"));
}

TEST(Safetensors, SurvivesEveryChangeOfOneByteOfTheHeader) {
  const auto good = file_of(good_header, good_data);
  int parsed = 0;
  for (std::size_t at = 0; at < 8 + good_header.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      auto changed = good;
      changed[at] = static_cast<char>(value);
      parsed += parses(changed);
    }
  }
  EXPECT_GT(parsed, 1000);  // names and metadata may be any text
}

TEST(Safetensors, SurvivesPiecesCutOutCopiedAndExchanged) {
  for (std::uint64_t round = 0; round < 20'000; ++round) {
    auto header = good_header;
    const auto random = [&](std::uint64_t stream) { return philox(1, round, stream); };
    for (std::uint64_t edit = 0; edit <= random(0)[0] % 3; ++edit) {
      const auto [a, b, c, kind] = random(1 + edit);
      const auto piece = header.substr(a % header.size(), b % 40);
      if (kind % 3 != 0) header.erase(a % header.size(), piece.size());
      if (kind % 3 != 1) header.insert(c % (header.size() + 1), piece);
    }
    parses(file_of(header, good_data));
  }
}

// ---- writing

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string text_of(const Reader& reader, const Entry& entry) {
  std::string text(entry.end - entry.begin, '\0');
  reader.read(entry, std::as_writable_bytes(std::span(text)));
  return text;
}

Entry entry(std::string name, std::string dtype, std::vector<std::int64_t> shape) {
  return {.name = std::move(name), .dtype = std::move(dtype), .shape = std::move(shape)};
}

TEST(Safetensors, ReadsBackWhatItWrote) {
  const ScratchFolder folder;
  const std::vector<Entry> entries = {entry("w", "F32", {2, 3}),
                                      entry("quote\" \\ \n ä \x01", "BF16", {5}),
                                      entry("none", "F64", {3, 0}), entry("scalar", "I64", {})};
  const std::vector<std::string> contents = {std::string(24, 'w'), "0123456789", "", "scalar!!"};
  const Metadata metadata = {{"format", "echelon"}, {"quote\"", "\n\t\\ ü"}, {"", ""}};
  std::vector<std::size_t> asked;
  write(folder / "f", entries, metadata, [&](std::size_t i) {
    asked.push_back(i);
    return bytes_of(contents[i]);
  });
  EXPECT_EQ(asked, (std::vector<std::size_t>{0, 1, 2, 3}));

  const Reader reader(folder / "f");
  EXPECT_EQ(reader.path(), folder / "f");
  EXPECT_EQ(reader.header().metadata, metadata);
  EXPECT_EQ(reader.header().data_offset % 64, 0U);
  ASSERT_EQ(reader.header().entries.size(), 4U);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto* found = reader.find(entries[i].name);
    ASSERT_NE(found, nullptr) << entries[i].name;
    EXPECT_EQ(found->dtype, entries[i].dtype);
    EXPECT_EQ(found->shape, entries[i].shape);
    EXPECT_EQ(text_of(reader, *found), contents[i]);
  }
  EXPECT_EQ(reader.find("absent"), nullptr);
  EXPECT_EQ(reader.find(""), nullptr);
  EXPECT_EQ(reader.find("zzz"), nullptr);
}

TEST(Safetensors, WritesExactlyTheBytesOfTheFormat) {
  const ScratchFolder folder;
  write(folder / "f", {entry("t", "U8", {3})}, {{"k", "v"}},
        [](std::size_t) { return bytes_of("abc"); });
  const std::string header =
      R"({"__metadata__":{"k":"v"},"t":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})";
  EXPECT_EQ(read_file(folder / "f"),
            length_of(120) + header + std::string(120 - header.size(), ' ') + "abc");
}

TEST(Safetensors, WritesAFileWithoutTensors) {
  const ScratchFolder folder;
  write(folder / "f", {}, {}, [](std::size_t) { return std::span<const std::byte>(); });
  EXPECT_EQ(read_file(folder / "f"), length_of(56) + "{}" + std::string(54, ' '));
  EXPECT_TRUE(Reader(folder / "f").header().entries.empty());
}

TEST(Safetensors, AlignsTheDataWhateverTheHeader) {
  const ScratchFolder folder;
  for (std::size_t size = 0; size < 130; size += 7) {
    write(folder / "f", {entry(std::string(size, 'n'), "U8", {1})}, {},
          [](std::size_t) { return bytes_of("x"); });
    const Reader reader(folder / "f");
    EXPECT_EQ(reader.header().data_offset % 64, 0U);
    EXPECT_EQ(text_of(reader, reader.header().entries[0]), "x");
  }
}

TEST(Safetensors, SaysThatItsFileWasCutAfterItWasOpened) {
  const ScratchFolder folder;
  write(folder / "f", {entry("t", "U8", {9000})}, {},
        [text = std::string(9000, 'x')](std::size_t) { return bytes_of(text); });
  const Reader reader(folder / "f");
  std::filesystem::resize_file(folder / "f", 5000);
  const auto sentence = thrown<Error>([&] { text_of(reader, *reader.find("t")); });
  EXPECT_EQ(sentence.find((folder / "f").string() + " has become shorter"), 0U) << sentence;
}

TEST(Safetensors, ReadsTheBeginningOfATensor) {
  const ScratchFolder folder;
  write(folder / "f", {entry("a", "U8", {2}), entry("t", "U8", {3})}, {},
        [](std::size_t i) { return bytes_of(i == 0 ? "__" : "abc"); });
  const Reader reader(folder / "f");
  std::string two(2, '\0'), four(4, '\0');
  reader.read(*reader.find("t"), std::as_writable_bytes(std::span(two)));
  EXPECT_EQ(two, "ab");
  EXPECT_EQ(thrown<InvalidArgument>(
                [&] { reader.read(*reader.find("t"), std::as_writable_bytes(std::span(four))); }),
            "4 bytes of tensor \"t\" were asked for, which has 3");
}

TEST(Safetensors, CanBeReadWhenAReaderIsMoved) {
  const ScratchFolder folder;
  write(folder / "f", {entry("t", "U8", {3})}, {}, [](std::size_t) { return bytes_of("abc"); });
  Reader first(folder / "f");
  const Reader second(std::move(first));
  ASSERT_NE(second.find("t"), nullptr);
  EXPECT_EQ(text_of(second, *second.find("t")), "abc");
}

TEST(Safetensors, RefusesToWriteWhatItCouldNotRead) {
  const ScratchFolder folder;
  const auto refusal_to_write = [&](std::vector<Entry> entries, const Metadata& metadata = {}) {
    return thrown<InvalidArgument>([&] {
      write(folder / "f", std::move(entries), metadata,
            [](std::size_t) { return bytes_of("abc"); });
    });
  };
  EXPECT_EQ(refusal_to_write({entry("t", "U8", {4})}),
            "tensor \"t\" should have 4 bytes by its shape, but 3 were given");
  EXPECT_EQ(refusal_to_write({entry("t", "U8", {3}), entry("t", "U8", {3})}),
            "a safetensors file cannot have the name \"t\" twice");
  EXPECT_EQ(refusal_to_write({entry("__metadata__", "U8", {3})}),
            "a safetensors file cannot have the name \"__metadata__\" for a tensor");
  EXPECT_EQ(refusal_to_write({entry("t", "float", {3})}),
            "tensor \"t\" has the type \"float\", which safetensors does not know");
  EXPECT_EQ(refusal_to_write({entry("t", "U8", {-3})}),
            "tensor \"t\" has the shape [-3], whose bytes cannot be counted");
  EXPECT_EQ(refusal_to_write({entry("t", "U8", {std::int64_t{1} << 62, 4})}),
            "tensor \"t\" has the shape [4611686018427387904, 4], whose bytes cannot be counted");
  const auto utf8 =
      "cannot write " + (folder / "f").string() + ": names and metadata must be UTF-8";
  EXPECT_EQ(refusal_to_write({entry("\xff", "U8", {3})}), utf8);
  EXPECT_EQ(refusal_to_write({}, {{"\xff", ""}}), utf8);
  EXPECT_EQ(refusal_to_write({}, {{"", "\xff"}}), utf8);
  EXPECT_TRUE(folder.names().empty());
}

TEST(SafetensorsReader, NamesTheFileThatIsCorrupt) {
  const ScratchFolder folder;
  write_file(folder / "f", "short");
  EXPECT_EQ(thrown<Corrupt>([&] { Reader(folder / "f"); }),
            (folder / "f").string() +
                ": a safetensors file begins with 8 bytes of length, but this has 5 bytes");
  write_file(folder / "f", "");
  EXPECT_NE(thrown<Corrupt>([&] { Reader(folder / "f"); }).find("this has 0 bytes"),
            std::string::npos);
  EXPECT_EQ(thrown<Error>([&] { Reader(folder / "none"); }),
            "cannot open " + (folder / "none").string() + ": No such file or directory");
}

}  // namespace
}  // namespace echelon::safetensors
