/** Keeps the client's session alive, hears its news, and moves it to another server: what goes on in the background. */
export declare class Keeper {
    #private;
}
