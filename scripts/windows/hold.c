/* hold FILE: opens a file as programs do that let nobody else have it, says so, and keeps it until there is a file hold.stop. */
#include <stdio.h>
#include <windows.h>

int wmain(int count, wchar_t **arguments)
{
    if (count != 2)
        return 2;
    HANDLE file = CreateFileW(arguments[1], GENERIC_READ, 0, NULL, OPEN_EXISTING, 0, NULL);
    if (file == INVALID_HANDLE_VALUE) {
        printf("error %lu\n", GetLastError());
        return 1;
    }
    puts("held");
    fflush(stdout);
    while (GetFileAttributesW(L"hold.stop") == INVALID_FILE_ATTRIBUTES)
        Sleep(100);
    return 0;
}
