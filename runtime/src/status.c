/* Stores the calling thread's last error message. */
#include <stdarg.h>
#include <stdio.h>

#include "runtime.h"

static _Thread_local char message[1024];

tcc_status tcc_fail(tcc_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return status;
}

const char *tcc_last_error(void) { return message; }
