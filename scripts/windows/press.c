/* press SECONDS COMMAND...: runs a command on a console, presses Ctrl-C there after so long, and prints how the command ended. */
#include <stdio.h>
#include <stdlib.h>
#include <wchar.h>
#include <windows.h>

int wmain(int count, wchar_t **arguments)
{
    if (count < 3)
        return 2;
    static wchar_t line[32768];
    for (int i = 2; i < count; i++) {
        wcscat(line, i > 2 ? L" \"" : L"\"");
        wcscat(line, arguments[i]);
        wcscat(line, L"\"");
    }
    FreeConsole();
    AllocConsole();
    STARTUPINFOW start = {.cb = sizeof start, .dwFlags = STARTF_USESTDHANDLES};
    start.hStdInput = GetStdHandle(STD_INPUT_HANDLE);
    SECURITY_ATTRIBUTES inherit = {.nLength = sizeof inherit, .bInheritHandle = TRUE};
    start.hStdOutput = CreateFileW(L"press.out", GENERIC_WRITE, FILE_SHARE_READ, &inherit, CREATE_ALWAYS, 0, NULL);
    start.hStdError = start.hStdOutput;
    PROCESS_INFORMATION process;
    if (!CreateProcessW(NULL, line, NULL, NULL, TRUE, 0, NULL, NULL, &start, &process)) {
        printf("error %lu\n", GetLastError());
        return 1;
    }
    Sleep(1000 * wcstoul(arguments[1], NULL, 10));
    SetConsoleCtrlHandler(NULL, TRUE); /* only the command is to hear it */
    if (!GenerateConsoleCtrlEvent(CTRL_C_EVENT, 0))
        printf("error %lu\n", GetLastError());
    DWORD code = 259;
    if (WaitForSingleObject(process.hProcess, 60000) == WAIT_OBJECT_0)
        GetExitCodeProcess(process.hProcess, &code);
    else
        TerminateProcess(process.hProcess, 99);
    printf("ended with %lu\n", code);
    return 0;
}
