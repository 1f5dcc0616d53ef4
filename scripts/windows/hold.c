/* hold FILE SECONDS: opens a file as programs do that let nobody else have it, says so, and keeps it so long. */
#include <stdio.h>
#include <stdlib.h>
#include <wchar.h>
#include <windows.h>

int wmain(int count, wchar_t **arguments)
{
    if (count != 3)
        return 2;
    HANDLE file = CreateFileW(arguments[1], GENERIC_READ, 0, NULL, OPEN_EXISTING, 0, NULL);
    if (file == INVALID_HANDLE_VALUE) {
        fprintf(stderr, "error %lu\n", GetLastError());
        return 1;
    }
    puts("held");
    fflush(stdout);
    Sleep(1000 * wcstoul(arguments[2], NULL, 10));
    return 0;
}
