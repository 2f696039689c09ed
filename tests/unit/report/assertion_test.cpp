#include "kvsim/report/assertion.hpp"

#include <doctest/doctest.h>

#include "kvsim/base/check.hpp"
#include "kvsim/random/distribution.hpp"
#include "kvsim/random/stream.hpp"
#include "sample_run.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

std::string error_of(std::string_view text) {
    try {
        parse_assertion(text);
    } catch (const UserError& error) { return error.what(); }
    return "";
}

bool contains(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("assertions: judged in the column's unit") {
    const Summary s = summarize(sample_info(), sample_outcome());
    const auto holds = [&](std::string_view text) { return evaluate(parse_assertion(text), s).passed; };
    // ttft_p99_ms is 197.6
    CHECK(holds("ttft_p99 <= 0.2s"));
    CHECK(holds("ttft_p99_ms<=197.6ms"));
    CHECK(holds("ttft_p99_ms <= 197.6"));
    CHECK(holds("ttft_p99 < 200 ms"));
    CHECK(holds("ttft_p99 > 197000us"));
    CHECK_FALSE(holds("ttft_p99 < 197.6ms"));
    CHECK_FALSE(holds("ttft_p99 <= 0.19s"));
    CHECK(holds("itl_mean == 1250ns"));
    CHECK(holds("duration <= 1min"));
    CHECK(holds("duration_s == 2500ms"));
    CHECK(holds("goodput >= 0.8"));
    CHECK(holds("goodput_req_s >= 48/min"));
    CHECK(holds("goodput >= 0.8 req/s"));
    CHECK(holds("output_throughput > 17 tok/s"));
    CHECK(holds("kv_usage_peak <= 80%"));
    CHECK(holds("kv_usage_peak <= 0.8"));
    CHECK_FALSE(holds("kv_usage_peak < 80%"));
    CHECK(holds("load > 1.3"));
    CHECK(holds("load > 130%"));
    CHECK(holds("preemptions == 2"));
    CHECK(holds("preemptions != 3"));
    CHECK(holds("kv_bytes_per_token == 64KiB"));
    CHECK(holds("verdict == stable"));
    CHECK(holds("verdict != overloaded"));
    CHECK_FALSE(holds("verdict == saturated"));
    CHECK(holds("  seed == 42  "));
}

TEST_CASE("assertions: the message carries the measured value") {
    const Summary s = summarize(sample_info(), sample_outcome());
    CHECK(evaluate(parse_assertion("ttft_p99 <= 0.1s"), s).message == "ttft_p99 <= 0.1s: FAIL (ttft_p99_ms is 197.6 ms)");
    CHECK(evaluate(parse_assertion("goodput > 0.5/s"), s).message == "goodput > 0.5/s: pass (goodput_req_s is 0.8 req/s)");
}

TEST_CASE("assertions: a column that does not apply fails, whatever is asked of it") {
    RunInfo info = sample_info();
    info.slo = {};
    const Summary s = summarize(info, sample_outcome());
    for (const char* text : {"goodput >= 0", "goodput < 1e9", "goodput != 7"}) {
        const AssertionResult result = evaluate(parse_assertion(text), s);
        CHECK_FALSE(result.passed);
        CHECK(result.measured == "not applicable");
    }
}

TEST_CASE("assertions: what is wrong is said") {
    CHECK(contains(error_of("ttft_p9 <= 2s"), "did you mean 'ttft_p9"));
    CHECK(contains(error_of("godput >= 1"), "did you mean 'goodput'"));
    CHECK(contains(error_of("ttft_p99 <= 2"), "needs a unit (ns, us, ms, s, min, h)"));
    CHECK(contains(error_of("ttft_p99 <= 2GB"), "unit 'GB' does not fit ttft_p99_ms"));
    CHECK(contains(error_of("goodput >= 2 tok/s"), "unit 'tok/s' does not fit goodput_req_s (one of: /s, /min, /h, req/s)"));
    CHECK(contains(error_of("preemptions <= 2s"), "which has none"));
    CHECK(contains(error_of("slo_attainment >= 95"), "write 0.95 or 95%"));
    CHECK(contains(error_of("verdict >= stable"), "only == and !="));
    CHECK(contains(error_of("verdict == stabel"), "stable, saturated, overloaded"));
    CHECK(contains(error_of("ttft_p99 =< 2s"), "unknown operator '=<'"));
    CHECK(contains(error_of("ttft_p99 = 2s"), "unknown operator '='"));
    CHECK(contains(error_of("ttft_p99 <= fast"), "not a number"));
    CHECK(contains(error_of("ttft_p99 <= nan"), "not a number"));
    CHECK(contains(error_of("ttft_p99 <= infs"), "not a number"));
    CHECK(contains(error_of("ttft_p99 <="), "value is missing"));
    CHECK(contains(error_of("<= 2s"), "column is missing"));
    CHECK(contains(error_of("ttft_p99"), "expected COLUMN OPERATOR VALUE"));
    CHECK(contains(error_of(""), "expected COLUMN OPERATOR VALUE"));
}

namespace {

/// Two requests of class "chat", one of class "a batch" and one of none; the last is rejected.
Summary with_classes() {
    Outcome o = sample_outcome();
    o.classes.set(0, "chat");
    o.classes.set(1, "chat");
    o.classes.set(2, "a batch");
    return summarize(sample_info(), o);
}

/// "column" of the caret of the message, from 1; the caret is on the last line.
std::size_t caret(const std::string& message) {
    return message.size() - message.rfind('\n') - 1;
}

}  // namespace

TEST_CASE("assertions: and binds closer than or, not closer than and") {
    const Summary s = summarize(sample_info(), sample_outcome());
    // t and f: what holds and what does not.
    const auto holds = [&](std::string text) {
        std::string written;
        for (std::size_t i = 0; i < text.size(); ++i) {
            const bool begins = i == 0 || text[i - 1] == ' ' || text[i - 1] == '(';
            const bool ends = i + 1 == text.size() || text[i + 1] == ' ' || text[i + 1] == ')';
            const bool letter = begins && ends && (text[i] == 't' || text[i] == 'f');
            if (letter)
                written.append(text[i] == 't' ? "seed == 42" : "seed == 41");
            else
                written += text[i];
        }
        text = written;
        CAPTURE(text);
        return evaluate(parse_assertion(text), s).passed;
    };
    CHECK(holds("t or t and f"));  // (t or t) and f does not
    CHECK(holds("f and f or t"));
    CHECK_FALSE(holds("(t or t) and f"));
    CHECK(holds("not f and t"));
    CHECK_FALSE(holds("not (f or t)"));
    CHECK(holds("not f or f"));
    CHECK_FALSE(holds("not t or f"));  // not (t or f) does not either, but:
    CHECK(holds("not t or t"));        // not (t or t) does not
    CHECK(holds("not not t"));
    CHECK(holds("((t)) and (t and (t or f))"));
    CHECK(holds("t AND NOT f Or f"));
    CHECK_FALSE(holds("t and t and f"));
    CHECK(holds("f or f or t"));
    CHECK_FALSE(holds("f or f"));
}

TEST_CASE("assertions: units, blanks and texts inside expressions") {
    const Summary s = summarize(sample_info(), sample_outcome());
    const auto holds = [&](std::string_view text) { return evaluate(parse_assertion(text), s).passed; };
    CHECK(holds("ttft_p99<=0.2s and preemptions==2"));
    CHECK(holds("ttft_p99 <= 200 ms and kv_usage_peak <= 80 % or preemptions == 7"));
    CHECK(holds("(goodput >= 48 /min)and(output_throughput > 17 tok/s)"));
    CHECK(holds("verdict == stable and model == org/model-8B"));
    CHECK(holds("(verdict == stable)"));
    CHECK(holds("verdict == \"stable\" and gpu == 'H100'"));
    CHECK(holds("deviations == max_num_seqs=8 (vllm-v1: 1024) and seed == 42"));
    CHECK_FALSE(holds("deviations == \"x and y\""));
    CHECK(holds("\n  seed == 42\n  and preemptions == 2\n"));
}

TEST_CASE("assertions: what does not apply is neither true nor false, also under not and or") {
    RunInfo info = sample_info();
    info.slo = {};
    const Summary s = summarize(info, sample_outcome());
    const auto holds = [&](std::string_view text) { return evaluate(parse_assertion(text), s).passed; };
    CHECK_FALSE(holds("not goodput >= 1"));
    CHECK_FALSE(holds("not goodput < 1"));
    CHECK(holds("goodput >= 1 or seed == 42"));
    CHECK_FALSE(holds("goodput >= 1 or seed == 41"));
    CHECK_FALSE(holds("goodput >= 1 and seed == 42"));
    CHECK(holds("not (goodput >= 1 and seed == 41)"));
    CHECK_FALSE(holds("not (goodput >= 1 or seed == 41)"));
}

TEST_CASE("assertions: figures of one class") {
    const Summary s = with_classes();
    REQUIRE(s.classes.size() == 3);
    const auto holds = [&](std::string_view text) { return evaluate(parse_assertion(text), s).passed; };
    CHECK(holds("class(chat).requests == 2"));
    CHECK(holds("class( chat ) . requests == 2"));
    CHECK(holds("class(a batch).requests == 1 and class(\"a batch\").completed == 1"));
    CHECK(holds("class(\"\").rejected == 1 and class('').completed == 0"));
    const auto figure = [&](std::string_view name, std::string_view column) {
        for (const ClassSummary& c : s.classes) {
            if (c.name == name) return text_with_unit(find_class_column(column)->get(s, c), column, Unit::ms);
        }
        return std::string();
    };
    CHECK(evaluate(parse_assertion("class(chat).ttft_p99 <= 1h"), s).measured == figure("chat", "ttft_p99"));
    CHECK(figure("chat", "ttft_p99") != figure("a batch", "ttft_p99"));
    CHECK(evaluate(parse_assertion("class(chat).ttft_p99 <= 1ns"), s)
              .message.starts_with("class(chat).ttft_p99 <= 1ns: FAIL (class(chat).ttft_p99_ms is "));
    // Of a rejected request there is no latency.
    CHECK(evaluate(parse_assertion("class(\"\").ttft_p99 <= 1h"), s).measured == "not applicable");
    CHECK_FALSE(holds("class(\"\").ttft_p99 <= 1h"));
    CHECK_FALSE(holds("class(nobody).requests >= 0"));
}

TEST_CASE("assertions: the figures of the classes add up to those of the run") {
    const Summary s = with_classes();
    const auto sum = [&](std::string_view name) {
        double total = 0;
        for (const ClassSummary& c : s.classes) {
            const Cell cell = find_class_column(name)->get(s, c);
            if (const auto* whole = std::get_if<std::int64_t>(&cell)) total += static_cast<double>(*whole);
            if (const auto* number = std::get_if<double>(&cell)) total += *number;
        }
        return total;
    };
    for (const char* name : {"requests", "completed", "rejected", "preemptions", "recomputed_tokens"}) {
        CAPTURE(name);
        const Cell whole = find_summary_column(name)->get(s);
        CHECK(sum(name) == doctest::Approx(static_cast<double>(std::get<std::int64_t>(whole))));
    }
    CHECK(sum("output_throughput_tok_s") == doctest::Approx(*s.output_throughput_tok_s));
    CHECK(sum("request_throughput_req_s") == doctest::Approx(*s.request_throughput_req_s));
    CHECK(sum("goodput_req_s") == doctest::Approx(*s.goodput_req_s));
}

TEST_CASE("assertions: of several runs the mean is judged, also of a class") {
    Summary a = with_classes();
    Summary b = a;
    for (ClassSummary& c : a.classes) c.ttft.p99 = 100;
    for (ClassSummary& c : b.classes) c.ttft.p99 = 200;
    a.preemptions = 1;
    b.preemptions = 4;
    const std::vector<Summary> runs{a, b};
    CHECK(evaluate(parse_assertion("class(chat).ttft_p99 == 150ms"), runs).passed);
    CHECK(evaluate(parse_assertion("preemptions == 2.5"), runs).passed);
}

TEST_CASE("assertions: errors point at their place") {
    const auto at = [](std::string_view text) { return caret(error_of(text)); };
    CHECK(at("seed == 42 and ttft_p9 <= 2s") == 16);
    CHECK(at("seed == 42 and ttft_p99 <= 2") == 28);
    CHECK(at("(seed == 42 or seed == 1") == 1);
    CHECK(at("seed == 42 or seed == 1)") == 24);
    CHECK(at("seed == 42 and") == 15);
    CHECK(at("seed == 42 && seed == 1") == 12);
    CHECK(at("seed == 42 preemptions == 1") == 12);
    CHECK(at("seed = 42 or seed == 1") == 6);
    CHECK(at("class(chat.ttft_p99 <= 2s") == 6);
    CHECK(at("class(chat).ttft_p98 <= 2s") == 13);
    CHECK(contains(error_of("class(chat).ttft_p98 <= 2s"), "did you mean 'ttft_p9"));
    CHECK(contains(error_of("class(chat).itl_p99 <= 2s"), "not kept by class; tpot"));
    CHECK(contains(error_of("class(chat).kv_usage_mean <= 2%"), "not kept by class"));
    CHECK(contains(error_of("class(chat) <= 2s"), "expected '.COLUMN'"));
    CHECK(contains(error_of("class chat.ttft_p99 <= 2s"), "class(NAME).COLUMN"));
    CHECK(contains(error_of("class().ttft_p99 <= 2s"), "the class is missing"));
    CHECK(contains(error_of("chat.ttft_p99 <= 2s"), "written class(chat).COLUMN"));
    CHECK(contains(error_of("ttft_p99{class=chat} <= 2s"), "written class(NAME).ttft_p99"));
    CHECK(contains(error_of("2s >= ttft_p99"), "begins with its column"));
    CHECK(contains(error_of("seed == 42 || seed == 1"), "write 'or'"));
    CHECK(contains(error_of("gpu == 'H100"), "never closed"));
    CHECK(contains(error_of("()"), "expected COLUMN"));
    CHECK(contains(error_of("not"), "expected COLUMN"));
    CHECK(contains(error_of(std::string(500, '(') + "seed == 1"), "nested too deeply"));
    CHECK(contains(error_of(std::string(20'000, '(')), "longer than"));
    std::string nots;
    for (int i = 0; i < 500; ++i) nots += "not ";
    CHECK(contains(error_of(nots + "seed == 1"), "nested too deeply"));
}

TEST_CASE("assertions: an unknown class is an error with the nearest name") {
    const std::vector<std::string> known{"chat", "batch"};
    const auto error = [&](std::string_view text, const std::vector<std::string>& names) {
        try {
            parse_assertion(text).check_classes(names);
        } catch (const UserError& e) { return std::string(e.what()); }
        return std::string();
    };
    CHECK(error("class(chat).requests > 1 or class(batch).requests > 1", known).empty());
    CHECK(contains(error("seed == 1 or class(chta).requests > 1", known), "did you mean 'chat'?"));
    CHECK(caret(error("seed == 1 or class(chta).requests > 1", known)) == 20);
    CHECK(contains(error("class(zebras).requests > 1", known), "(one of: chat, batch)"));
    CHECK(contains(error("class(chat).requests > 1", {}), "no classes"));
}

namespace {

/// A random expression of comparisons that hold or not, written with the parentheses it needs and some more.
struct RandomExpression {
    Stream& stream;
    bool truth = false;
    std::string text;

    int pick(int n) { return static_cast<int>(uniform_int(stream.uniform(), 0, n - 1)); }

    /// `binds`: what stands around it; 0 nothing, 1 or, 2 and, 3 not.
    void make(int depth, int binds) {
        const int kind = depth == 0 ? 0 : pick(4);
        const int own = kind == 0 ? 4 : kind == 1 ? 3 : kind == 2 ? 2 : 1;
        const bool parentheses = own < binds || pick(4) == 0;
        if (parentheses) text += "(";
        if (kind == 0) {
            truth = pick(2) == 0;
            text += truth ? "seed == 42" : "seed != 42";
        } else if (kind == 1) {
            text += "not ";
            make(depth - 1, 3);
            truth = !truth;
        } else {
            make(depth - 1, own);
            const bool left = truth;
            text += kind == 2 ? " and " : " or ";
            make(depth - 1, own);
            truth = kind == 2 ? left && truth : left || truth;
        }
        if (parentheses) text += ")";
    }
};

}  // namespace

TEST_CASE("assertions: random expressions have the value of their tree") {
    const Summary s = summarize(sample_info(), sample_outcome());
    int truths = 0;
    for (std::uint64_t i = 0; i < 2000; ++i) {
        Stream stream(1, "random_expression", i);
        RandomExpression e{stream, false, {}};
        e.make(6, 0);
        CAPTURE(e.text);
        CHECK(evaluate(parse_assertion(e.text), s).passed == e.truth);
        truths += e.truth ? 1 : 0;
    }
    CHECK(truths > 600);
    CHECK(truths < 1400);
}

TEST_CASE("assertions: whatever is written is parsed or refused") {
    const std::string alphabet = "()<>=!.\"' \tand or not class(chat) ttft_p99 2s 95% verdict stable \xC3\xA9\x01&|";
    const Summary s = summarize(sample_info(), sample_outcome());
    int parsed = 0;
    for (std::uint64_t i = 0; i < 20'000; ++i) {
        Stream stream(2, "mutated_expression", i);
        std::string text = "(ttft_p99 <= 2s or not class(chat).completed == 3) and verdict == stable";
        const std::int64_t changes = uniform_int(stream.uniform(), 1, 4);
        for (std::int64_t c = 0; c < changes; ++c) {
            const auto at =
                static_cast<std::size_t>(uniform_int(stream.uniform(), 0, static_cast<std::int64_t>(text.size()) - 1));
            const auto with =
                static_cast<std::size_t>(uniform_int(stream.uniform(), 0, static_cast<std::int64_t>(alphabet.size()) - 1));
            switch (uniform_int(stream.uniform(), 0, 2)) {
                case 0:
                    text[at] = alphabet[with];
                    break;
                case 1:
                    text.erase(at, 1);
                    break;
                default:
                    text.insert(text.begin() + static_cast<std::ptrdiff_t>(at), alphabet[with]);
            }
        }
        try {
            static_cast<void>(evaluate(parse_assertion(text), s));
            ++parsed;
        } catch (const UserError& e) { CHECK(contains(e.what(), "error: ")); }
    }
    CHECK(parsed > 100);
}
