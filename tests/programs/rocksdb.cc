// RocksDB as a program whose power cuts are explored: `amberfs crash --program tests/programs/rocksdb.sh`.
//
//     rocksdb run DIR STEPS    writes STEPS synced batches; after each says `done N` and waits for a line
//     rocksdb judge            reads `DIR LOW HIGH` lines; answers `ok N` or `bad WHY` to each
//
// What a state must hold: the database opens with all its checks on, every block of it reads with its checksum, and
// the keys are exactly those of the first N batches, LOW <= N <= HIGH. Memtables are small, so that tables are
// written, compacted and removed all the while.

#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/write_batch.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>

namespace {

rocksdb::Options options() {
    rocksdb::Options options;
    options.create_if_missing = true;
    options.paranoid_checks = true;
    options.write_buffer_size = 16 << 10;
    options.level0_file_num_compaction_trigger = 2;
    options.max_background_jobs = 2;
    options.max_open_files = 64;
    options.info_log_level = rocksdb::InfoLogLevel::FATAL_LEVEL;
    options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
    return options;
}

std::string key(long n) { return "key" + std::to_string(n * 7919 % 1009); }

std::string value(long n) { return std::to_string(n) + ":" + std::string(50 + n * 131 % 2000, char('a' + n % 26)); }

// The keys after n batches: batch i sets its key and removes that of batch i - 30.
std::map<std::string, std::string> contents(long n) {
    std::map<std::string, std::string> all;
    for (long i = 1; i <= n; i++) {
        all[key(i)] = value(i);
        if (i > 30) all.erase(key(i - 30));
    }
    return all;
}

void acknowledge(long n) {
    std::cout << "done " << n << std::endl;
    std::string line;
    if (!std::getline(std::cin, line)) exit(1);
}

void must(const rocksdb::Status& status) {
    if (!status.ok()) {
        std::cerr << "rocksdb failed: " << status.ToString() << std::endl;
        exit(1);
    }
}

int run(const std::string& dir, long steps) {
    rocksdb::DB* opened = nullptr;
    must(rocksdb::DB::Open(options(), dir + "/db", &opened));
    std::unique_ptr<rocksdb::DB> db(opened);
    acknowledge(0);
    rocksdb::WriteOptions durable;
    durable.sync = true;
    for (long n = 1; n <= steps; n++) {
        rocksdb::WriteBatch batch;
        batch.Put(key(n), value(n));
        if (n > 30) batch.Delete(key(n - 30));
        must(db->Write(durable, &batch));
        acknowledge(n);
    }
    must(db->Close());
    return 0;
}

std::string verdict(const std::string& dir, long low, long high) {
    struct stat found;
    const std::string path = dir + "/db";
    if (stat((path + "/CURRENT").c_str(), &found) != 0) {
        return low < 0 ? "ok -1" : "bad the database is gone";
    }
    auto judged = options();
    judged.create_if_missing = false;
    rocksdb::DB* opened = nullptr;
    auto status = rocksdb::DB::Open(judged, path, &opened);
    if (!status.ok()) return "bad it does not open: " + status.ToString();
    std::unique_ptr<rocksdb::DB> db(opened);
    status = db->VerifyChecksum();
    if (!status.ok()) return "bad checksums: " + status.ToString();
    std::map<std::string, std::string> all;
    std::unique_ptr<rocksdb::Iterator> at(db->NewIterator(rocksdb::ReadOptions()));
    for (at->SeekToFirst(); at->Valid(); at->Next()) all[at->key().ToString()] = at->value().ToString();
    if (!at->status().ok()) return "bad reading: " + at->status().ToString();
    at.reset();
    for (long n = std::max(low, 0l); n <= high; n++) {
        if (all == contents(n)) return "ok " + std::to_string(n);
    }
    return "bad its " + std::to_string(all.size()) + " keys are not those after " + std::to_string(low) + " to " +
           std::to_string(high) + " batches";
}

}  // namespace

int main(int count, char** words) {
    const std::string what = count > 1 ? words[1] : "";
    if (what == "run" && count == 4) return run(words[2], atol(words[3]));
    if (what != "judge") {
        std::cerr << "usage: rocksdb run DIR STEPS | rocksdb judge" << std::endl;
        return 2;
    }
    std::string line;
    while (std::getline(std::cin, line)) {
        std::istringstream words_of(line);
        std::string dir;
        long low = 0, high = 0;
        std::getline(words_of, dir, '\t');
        words_of >> low >> high;
        std::cout << verdict(dir, low, high) << std::endl;
    }
    return 0;
}
