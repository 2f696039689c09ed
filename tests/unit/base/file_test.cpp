#include "kvsim/base/file.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>

#include "kvsim/base/check.hpp"

using namespace kvsim;
namespace fs = std::filesystem;

namespace {

struct Folder {
    fs::path path;
    Folder() {
        std::string name = (fs::temp_directory_path() / "kvsim_file_test_XXXXXX").string();
        REQUIRE(::mkdtemp(name.data()) != nullptr);
        path = name;
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    ~Folder() {
        std::error_code ignored;
        fs::remove_all(path, ignored);
    }
    [[nodiscard]] std::ptrdiff_t files() const { return std::distance(fs::directory_iterator(path), fs::directory_iterator()); }
};

template <class Action>
std::string user_error(Action action) {
    try {
        action();
    } catch (const UserError& e) { return e.what(); }
    return "no error";
}

void put(const fs::path& path, std::string_view text) {
    AtomicFile file(path);
    file.write(text);
    file.commit();
}

/// Whether the file system knows files without a name.
bool unnamed_files(const fs::path& folder) {
    const int fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    if (fd >= 0) ::close(fd);
    return fd >= 0;
}

}  // namespace

TEST_CASE("read_file gives the bytes or says why not") {
    const Folder folder;
    const std::string bytes("a\0b\r\n\xFF", 6);
    put(folder.path / "x", bytes);
    CHECK(read_file(folder.path / "x") == bytes);
    CHECK(read_file(folder.path / "x", 6) == bytes);
    CHECK(user_error([&] { read_file(folder.path / "x", 5); }) ==
          "cannot read '" + (folder.path / "x").string() + "': it has more than 5 bytes");
    CHECK(user_error([&] { read_file(folder.path); }) == "cannot read '" + folder.path.string() + "': Is a directory");
    CHECK(user_error([&] { read_file(folder.path / "none"); }) ==
          "cannot read '" + (folder.path / "none").string() + "': No such file or directory");
    CHECK(user_error([&] { read_file("/dev/zero", 1 << 20); }) == "cannot read '/dev/zero': it has more than 1048576 bytes");
}

TEST_CASE("AtomicFile appears complete or not at all") {
    const Folder folder;
    const fs::path path = folder.path / "out.csv";
    const std::string big(3'000'000, 'x');
    {
        AtomicFile file(path);
        file.write(big);
        CHECK_FALSE(fs::exists(path));
        CHECK(folder.files() == (unnamed_files(folder.path) ? 0 : 1));  // the temporary one, in the same folder
        file.write("end\n");
        file.commit();
    }
    CHECK(read_file(path) == big + "end\n");
    CHECK(folder.files() == 1);
    {
        AtomicFile file(path);
        file.write("new");
    }  // not committed
    CHECK(read_file(path) == big + "end\n");
    CHECK(folder.files() == 1);
    put(path, "");
    CHECK(read_file(path).empty());
}

TEST_CASE("AtomicFile: a killed process leaves nothing behind") {
    const Folder folder;
    if (!unnamed_files(folder.path)) {
        MESSAGE("skipped: this file system has no unnamed files");
        return;
    }
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        AtomicFile file(folder.path / "out.csv");
        file.write(std::string(1'000'000, 'x'));
        ::kill(::getpid(), SIGKILL);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
    CHECK(folder.files() == 0);
}

TEST_CASE("AtomicFile gives the permissions that others would") {
    const Folder folder;
    put(folder.path / "ours", "x");
    const int fd = ::open((folder.path / "plain").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    REQUIRE(fd >= 0);
    ::close(fd);
    struct stat ours {
    }, plain{};
    REQUIRE(::stat((folder.path / "ours").c_str(), &ours) == 0);
    REQUIRE(::stat((folder.path / "plain").c_str(), &plain) == 0);
    CHECK(ours.st_mode == plain.st_mode);
    CHECK(ours.st_nlink == 1);
}

TEST_CASE("AtomicFile refuses use after commit") {
    const Folder folder;
    AtomicFile file(folder.path / "a");
    file.commit();
    CHECK_THROWS_AS(file.write("x"), InternalError);
    CHECK_THROWS_AS(file.commit(), InternalError);
}

TEST_CASE("AtomicFile names what stands in the way") {
    const Folder folder;
    CHECK(user_error([&] { AtomicFile(folder.path / "no" / "x"); }) == "cannot write '" + (folder.path / "no" / "x").string() +
                                                                           "': the folder '" + (folder.path / "no").string() +
                                                                           "' does not exist");
    CHECK(user_error([&] { AtomicFile{folder.path}; }) == "cannot write '" + folder.path.string() + "': Is a directory");
    put(folder.path / "file", "x");
    CHECK(user_error([&] { AtomicFile(folder.path / "file" / "x"); }).find("Not a directory") != std::string::npos);
    if (::geteuid() != 0) {  // root may write anywhere
        ::chmod((folder.path / "file").c_str(), 0444);
        CHECK(user_error([&] { AtomicFile(folder.path / "file"); }).find("Permission denied") != std::string::npos);
    }
}

TEST_CASE("AtomicFile reports a full disk") {
    if (!fs::exists("/dev/full")) return;
    CHECK(user_error([] { put("/dev/full", "x"); }) == "cannot write '/dev/full': No space left on device");
}

TEST_CASE("AtomicFile follows links, keeps permissions and takes the longest names") {
    const Folder folder;
    const fs::path real = folder.path / "real";
    put(real, "old");
    ::chmod(real.c_str(), 0640);
    fs::create_symlink("real", folder.path / "link");
    put(folder.path / "link", "new");
    CHECK(fs::is_symlink(folder.path / "link"));
    CHECK(read_file(real) == "new");
    struct stat status {};
    REQUIRE(::stat(real.c_str(), &status) == 0);
    CHECK((status.st_mode & 0777U) == 0640);
    const fs::path longest = folder.path / std::string(255, 'n');
    put(longest, "x");
    CHECK(read_file(longest) == "x");
}

TEST_CASE("AtomicFile writes into a device instead of replacing it") {
    put("/dev/null", "gone");
    CHECK(fs::is_character_file("/dev/null"));
}

TEST_CASE("finished files become visible when they are committed, and vanish when they are not") {
    const Folder folder;
    {
        AtomicFile kept(folder.path / "kept");
        AtomicFile dropped(folder.path / "dropped");
        kept.write("text");
        dropped.write("text");
        kept.finish();
        dropped.finish();
        CHECK_FALSE(fs::exists(folder.path / "kept"));
        CHECK_THROWS_AS(kept.write("more"), InternalError);
        kept.commit();
        CHECK(read_file(folder.path / "kept") == "text");
    }
    CHECK(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()) == 1);
}
