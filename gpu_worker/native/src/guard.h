// Failures of the functions that Python calls: a line for radixd_error(), and never an exception.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <utility>

namespace radixd {

inline constexpr const char* kNoMemory = "no memory";

inline thread_local std::string last_error;  // what radixd_error() says

inline int fail(const std::string& problem) {
  last_error = problem;
  return 0;
}

template <class Body>
auto guarded(decltype(std::declval<Body>()()) failed, const Body& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    fail(kNoMemory);
    return failed;
  } catch (const std::exception& error) {
    fail(error.what());
    return failed;
  }
}

}  // namespace radixd
